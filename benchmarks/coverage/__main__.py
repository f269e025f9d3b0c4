"""Which models are served, of all that transformers has.

    python -m benchmarks.coverage [--kind text,wrapper,format,disk] [--only NAME,NAME]
                                  [--dtype float32] [--jobs N] [--seconds N]

A tiny random model of every type of decoder, of every type that has one beside towers for pictures
or sound, and in every form of checkpoints is saved as a folder, and loaded as the program loads
one. Its core serves seven greedy requests that arrive one after the other, cut into steps of 24
tokens, in a pool too small for all of them, and the last one has a prefix of the first one. The
tokens are compared with transformers' own `generate` (`benchmarks.coverage.compare` has the rule).
A row says what did not happen of this on the way. Its column `off` says how many operations our
kernels leave to torch, or `all` where the model runs module by module.

A row counts as served if its tokens agree. Of the 25 models that people run most, one counts if all
its rows do, in the form that its checkpoints have. Nothing is downloaded. Each row has a process of
its own. It needs the libraries of the forms, which `batchdeck[dev]` brings.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import transformers

from benchmarks.coverage.child import NoAnswerError, in_child
from benchmarks.coverage.rows import MODELS, NAMES, Kind, Row, rows
from benchmarks.coverage.survey import By, Outcome, Trial, survey
from benchmarks.coverage.table import HEAD, to_line, totals
from benchmarks.heading import heading

_DTYPES = ("float32", "bfloat16", "float16")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    print(
        heading(
            f"torch {torch.__version__}, transformers {transformers.__version__}", options.dtype
        )
    )
    print(HEAD, flush=True)
    attempt = functools.partial(_attempt, dtype=options.dtype, seconds=options.seconds)
    outcomes = []
    for outcome in _each(attempt, options.rows, options.jobs):
        print(to_line(outcome), flush=True)
        outcomes.append(outcome)
    print("\n" + "\n".join(totals(outcomes)))


def _each(attempt: Callable[[Row], Outcome], wanted: Sequence[Row], jobs: int) -> Iterator[Outcome]:
    """Outcomes in the order of the rows, `jobs` at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(attempt, wanted)


def _attempt(row: Row, *, dtype: str, seconds: float) -> Outcome:
    try:
        return in_child(survey, Trial(row, dtype), seconds)
    except NoAnswerError as error:
        return Outcome(row, By.CRASHED, f"its process: {error}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", default=",".join(Kind), help="of rows; disk adds what it needs")
    parser.add_argument("--only", help="rows by name, of these kinds; a type has its variants too")
    parser.add_argument("--dtype", default="float32", choices=_DTYPES)
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--seconds", type=float, default=300.0, help="that a row may take")
    options = parser.parse_args(arguments)
    chosen = [part.strip() for part in options.kind.split(",")]
    for part in chosen:
        if part not in NAMES:
            parser.error(f"--kind: {part!r} is none; it must be of {', '.join(Kind)}")
    for name in ("jobs", "seconds"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name}: {getattr(options, name)} is too few; it must be more than 0")
    kinds = [Kind(part) for part in chosen]
    wanted = rows(kinds)
    if Kind.DISK in kinds:
        wanted += [row for found in MODELS.values() for row in found if row not in wanted]
    if options.only is not None:
        names = [name.strip() for name in options.only.split(",")]
        for name in names:
            if not any(_is_called(row, name) for row in wanted):
                parser.error(f"--only: {name!r} is no row of the kind {', '.join(kinds)}")
        wanted = [row for row in wanted if any(_is_called(row, name) for name in names)]
    options.rows = list(dict.fromkeys(wanted))
    return options


def _is_called(row: Row, name: str) -> bool:
    return name in (row.name, row.name.partition("@")[0])


if __name__ == "__main__":
    main()
