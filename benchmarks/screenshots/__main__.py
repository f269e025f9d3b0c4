"""Makes the pictures of README.md and docs/ from real runs of the interface.

    python -m benchmarks.screenshots [--folder docs/images] [--only NAME,...]

Each picture is the interface over a real engine with the built-in model, in which the crowd of the
demonstration chats (`app.screens.demo`). It is taken when what it is to show has happened, so that
two runs never give the same figures.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from benchmarks.screenshots.picture import PICTURES, Picture, take

MOST_BYTES = 150_000


async def make(pictures: list[Picture], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        started = time.monotonic()
        svg = await take(picture)
        file = folder / f"{picture.name}.svg"
        size = len(svg.encode())
        if size > MOST_BYTES:
            raise SystemExit(f"{file} has {size:,} bytes; at most {MOST_BYTES:,} are wanted")
        file.write_text(svg, encoding="utf-8")
        print(f"{file}: {size:,} bytes, after {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    names = [picture.name for picture in PICTURES]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.screenshots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", default=",".join(names), help=", ".join(names))
    options = parser.parse_args()
    wanted = options.only.split(",")
    for name in wanted:
        if name not in names:
            parser.error(f"--only: {name!r} is none; it must be of {', '.join(names)}")
    asyncio.run(make([p for p in PICTURES if p.name in wanted], options.folder))


if __name__ == "__main__":
    main()
