"""The cost of the interface on screen for an engine that computes on the same cores.

    python -m benchmarks.screen [--models builtin,387m] [--sessions N] [--seconds N] [--rounds N]
                                [--size COLUMNSxLINES] [--compare K=V,...]... [--json FILE]
    python -m benchmarks.screen --models device,lockstep --sessions 64

For each model some programs hold the same chats, all of which stream: one without interface, an
`EngineHost` whose streams a thread drains, and the `tui` in a pseudo-terminal that a thread reads,
its chats typed in as a person would. They take turns: while one is measured the others are stopped
(SIGSTOP), so that all see the same machine. What is compared are tokens a second by the engines'
own step records, round by round, at the same lengths of context.

The models `device` and `lockstep` are no models. A device of depth 2, or 1, stands in for one: it
takes 4 ms for a step, outside the interpreter's lock, and its tokens are text that was written.

Another `tui` for each `--compare`, with these changed:

    switch=MS    sys.setswitchinterval: how long a thread waits for the interpreter
    nice=N       of the interface's thread, by setpriority on its id
    share=X      of the cores, what the interface may take (app.screens.feeds.cadence)
    wait=POLICY  OMP_WAIT_POLICY of torch's pool: active or passive
    spin=N       GOMP_SPINCOUNT of it

`ratio` and `p99 x` are to headless: of tokens a second, and of the 99th percentile (`p99`) of the
time from the end of a step to that of the next one. `late`: how much later than the device is done
with a step the engine's thread goes on, the 99th percentile; the system and the interpreter's lock
take that. `interface`: CPU milliseconds a second of the threads that paint. `pools`: of those that
compute and are not Python's. `beside`: of a step, from the end of the one before, what is not the
runner's: plan, commit, text handed over, snapshots, and the wait for the interpreter.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from app.process.columns import align
from app.process.console import write_json
from benchmarks.heading import heading
from benchmarks.screen.models import MODELS, Model
from benchmarks.screen.program import Program, program
from benchmarks.screen.window import COLUMNS, Window

SETTINGS = ("switch", "nice", "share", "wait", "spin")


def take_turns(programs: Sequence[Program], rounds: int, seconds: float) -> None:
    for number in range(rounds):
        if not all(one.has_room(seconds) for one in programs):
            # All of them: a step costs more the longer the chats are.
            for one in programs:
                one.begin(again=True)
        # Who goes first changes: what goes after another finds the caches cold.
        order = [*programs[number % len(programs) :], *programs[: number % len(programs)]]
        for one in order:
            one.measure(seconds)


def measure(model: Model, options: argparse.Namespace) -> dict[str, list[Window]]:
    """The windows of each program on one model, by its name."""
    settings: dict[str, Mapping[str, str]] = {"headless": {}, "screen": {}}
    settings |= {",".join(f"{k}={v}" for k, v in one.items()): one for one in options.compare}
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder))
        return _measure(model, Path(folder), settings, options)


def _measure(
    model: Model,
    source: Path,
    settings: Mapping[str, Mapping[str, str]],
    options: argparse.Namespace,
) -> dict[str, list[Window]]:
    with ExitStack() as stack:
        programs = []
        for name, compare in settings.items():
            one = stack.enter_context(program(name, model, source, compare, options))
            one.begin()
            programs.append(one)
        take_turns(programs, options.rounds, options.seconds)
        return {one.name: one.windows() for one in programs}


def rows(model: str, windows: Mapping[str, Sequence[Window]]) -> Iterator[tuple[str, ...]]:
    """A row for each program: medians over its turns, the ratios to headless round by round."""
    bare = windows["headless"]
    for name, turns in windows.items():
        rate = statistics.median(w.rate / b.rate for w, b in zip(turns, bare, strict=True))
        p99 = statistics.median(w.p99 / b.p99 for w, b in zip(turns, bare, strict=True))
        figures = (_median([getattr(window, column) for window in turns]) for column in COLUMNS)
        yield (model, name, f"{rate:.3f}", f"{p99:.2f}", *figures)


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.1f}" if known else "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="builtin,387m")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=size, default=(160, 48), metavar="COLUMNSxLINES")
    parser.add_argument("--compare", type=_setting, action="append", default=[], metavar="K=V,...")
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    options = parser.parse_args()
    models = options.models.split(",")
    for name in models:
        if name not in MODELS:
            parser.error(f"--models: {name!r} is none; it must be of {', '.join(MODELS)}")
    # Else the programs outlive it, stopped, with a model each.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    columns, lines = options.size
    print(
        heading(
            f"{options.sessions} sessions, {columns}x{lines}",
            f"{options.rounds} rounds of {options.seconds:g} s",
        ),
        flush=True,
    )
    found = {name: measure(MODELS[name], options) for name in models}
    head = ("model", "program", "ratio", "p99 x", "tok/s", "step ms", *COLUMNS[2:])
    table = [head, *(row for model, windows in found.items() for row in rows(model, windows))]
    print("\n".join(align(table, numbers=range(2, len(head)))))
    if options.json_file is not None:
        write_json(
            {m: {n: [asdict(w) for w in ws] for n, ws in by.items()} for m, by in found.items()},
            options.json_file,
        )


def size(text: str) -> tuple[int, int]:
    """Columns and lines of `COLUMNSxLINES`."""
    columns, _, lines = text.partition("x")
    return int(columns), int(lines)


def _setting(text: str) -> dict[str, str]:
    pairs = dict(pair.partition("=")[::2] for pair in text.split(","))
    for name in pairs:
        if name not in SETTINGS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SETTINGS)}")
    return pairs


if __name__ == "__main__":
    main()
