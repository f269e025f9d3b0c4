"""The cost of keeping replies to a structure: llguidance, which is used, beside xgrammar.

    python -m benchmarks.structure [--vocab 151936] [--megabytes 32] [--seconds 10]

The vocabularies are that of the built-in model, and one of `--vocab` tokens: byte-level BPE, which
is trained here on the text of the packages that are installed. Each structure is compiled by both
with nothing kept from before, and then a text that has it is gone through token by token: what the
mask of each token takes, and what it takes to go on to the next. Sampling with masks is that of the
engine, whose masks are computed beside a pause in the place of the forward pass. Hostile structures
are compiled, and 40 tokens of them followed, each in a process of its own that may take
`--seconds`; MiB is what its memory grew by. xgrammar is left out where it is not installed; `pip
install xgrammar` brings it, with what it needs.
"""

from __future__ import annotations

import argparse
from importlib.metadata import requires, version

from app.process.columns import align
from benchmarks.heading import heading
from benchmarks.structure import following, hostile, sampling
from benchmarks.structure.sides import SIDES
from benchmarks.structure.vocab import builtin, trained


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.structure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--megabytes", type=int, default=32, help="of text to train it on")
    parser.add_argument("--seconds", type=float, default=10.0, help="for a hostile structure")
    args = parser.parse_args()
    needs = {name: sum("extra" not in one for one in requires(name) or ()) for name in SIDES}
    about = [f"{name} {version(name)} (needs {needs[name]} packages)" for name in SIDES]
    print(heading("1 thread each", *about))
    large = trained(args.vocab, args.megabytes)
    known = sum(map(bool, large.words.utf8))
    print(f"{known:,} of {args.vocab:,} ids have a token\n")
    rows = [row for vocab in (builtin(), large) for row in following.measure(vocab)]
    print("\n".join(align([[*following.HEAD], *rows], range(3, 9))))
    print()
    rows = [row for number in (1, 32) for row in sampling.measure(large, number)]
    print("\n".join(align([[*sampling.HEAD], *rows], (1, 4, 5))))
    print()
    print("\n".join(align([[*hostile.HEAD], *hostile.measure(args.seconds)], range(3, 6))))


if __name__ == "__main__":
    main()
