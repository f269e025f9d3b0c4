"""Options: what benchmarks have in common on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Collection


def add_parts(parser: argparse.ArgumentParser, parts: Collection[str]) -> None:
    """Add `--parts A,B`, which is all of them unless stated; the option becomes a list."""

    def read(text: str) -> list[str]:
        asked = [part.strip().upper() for part in text.split(",")]
        for part in asked:
            if part not in parts:
                allowed = ", ".join(parts)
                raise argparse.ArgumentTypeError(f"{part!r} is no part; it must be of {allowed}")
        return asked

    parser.add_argument("--parts", type=read, default=[*parts], metavar=",".join(parts))


def positive_int(text: str) -> int:
    """A whole number that is more than 0, as a type of an option."""
    return int(_positive(int(text)))


def positive_float(text: str) -> float:
    """A number that is more than 0, as a type of an option."""
    return _positive(float(text))


def _positive(value: float) -> float:
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{value} is too few; it must be more than 0")
    return value
