"""The cost of the interface and how soon it answers, on a pseudo-terminal.

    python -m benchmarks.interface [--parts start,search,load,scripted,real,throughput]
                                   [--sessions N] [--seconds N] [--keys N] [--rounds N]
                                   [--minutes N] [--size COLUMNSxLINES] [--json FILE]

start: the command `tui`, from exec to its first screen, with 1,000 chats and 10,000 messages in
the store, and to the last chat on it. search: how soon chats of that store are found while
words are typed, and how long it takes to index them. load: keys and event loop while the first
model is loaded. scripted, real: CPU of the idle program; CPU of the threads of the interface,
keys and event loop while all chats stream; with --minutes, the memory of the program. `scripted`
is an engine with a device that gives each chat 20 tokens a second of a text that was written,
`real` the built-in model on the cores of the interface. throughput: tokens a second of the real
engine with the interface, of those without (`benchmarks.screen`).

The event loop is probed at each moment of a grid, so that a long stop counts as long as it was.
Keys are pressed at random moments. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from app.process.console import write_json
from benchmarks.figure import HEAD, Figure
from benchmarks.heading import heading
from benchmarks.interface import loading, search, start, stream
from benchmarks.screen import __main__ as turns
from benchmarks.screen.models import MODELS

PARTS = ("start", "search", "load", "scripted", "real", "throughput")


def measure(part: str, options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of one part."""
    match part:
        case "start":
            return start.measure(options.rounds, options.size)
        case "search":
            return search.measure(options.rounds)
        case "load":
            return loading.measure(options)
        case "throughput":
            return _throughput(options)
    return stream.measure(part, options)


def _throughput(options: argparse.Namespace) -> Iterator[Figure]:
    options = stream.in_one_batch(options)
    windows = turns.measure(MODELS["builtin"], options)
    ratios = (
        with_it.rate / without.rate
        for with_it, without in zip(windows["screen"], windows["headless"], strict=True)
    )
    share = 100 * statistics.median(ratios)
    against = f"real: {options.sessions} chats stream; of the tokens without interface"
    yield Figure("throughput", "tokens with the interface", share, "%", against).at_least(92)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interface",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="of what is measured at once")
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=0.0, help="of streams, for the memory")
    parser.add_argument("--size", type=turns.size, default=(160, 48), metavar="COLUMNSxLINES")
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    parser.set_defaults(compare=[])
    options = parser.parse_args()
    parts = options.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts: {part!r} is none; it must be of {', '.join(PARTS)}")
    # Else the programs outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    columns, lines = options.size
    print(heading(f"{options.sessions} chats", f"{columns}x{lines}"), flush=True)
    print(HEAD, flush=True)
    figures: list[Figure] = []
    for part in parts:
        for figure in measure(part, options):
            print(figure, flush=True)
            figures.append(figure)
    if options.json_file is not None:
        write_json({"figures": [figure.to_json() for figure in figures]}, options.json_file)
    sys.exit(0 if all(figure.is_met for figure in figures) else 1)


if __name__ == "__main__":
    main()
