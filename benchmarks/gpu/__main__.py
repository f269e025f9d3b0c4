"""batchdeck on a GPU: `python -m benchmarks.gpu --short [--dry-run] [--part 1|2]`, which takes a
quarter of an hour (`benchmarks.gpu.short`), or `python -m benchmarks.gpu [OPTIONS]`, which measures
everything (`benchmarks.gpu.whole`).
"""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    if "--short" in arguments:
        # It imports nothing that a machine may lack, to be able to say what that is.
        from benchmarks.gpu import short

        return short.main([one for one in arguments if one != "--short"])
    from benchmarks.gpu import whole

    whole.main(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
