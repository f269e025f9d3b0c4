"""Table: the figures of a model file, a line for each who serves it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from app.process.columns import align
from benchmarks.peers.peers import OURS
from benchmarks.real.entrants import LLAMA
from benchmarks.real.measuring import Likeness, Measured

_UNITS = {
    **{"first": "load s", "cold": "load s", "warm": "load s"},
    **{"prompt": "tok/s", "TPOT": "ms", "1": "tok/s", "8": "tok/s", "32": "tok/s"},
    **{"peak": "MiB", "steady": "MiB", "at 32": "MiB"},
    **{"perplexity": "", "equal": "of 20", "prefix": "of 64"},
}
_DIGITS = {"first": 2, "cold": 2, "warm": 2, "perplexity": 3}
_WHOLE = ("prompt", "peak", "steady", "at 32", "equal")
_RATIOS = ("cold", "warm", "prompt", "TPOT", "1", "8", "32", "peak", "steady", "at 32")
_REFERENCE = "dequantized, float32"


def table(measured: Mapping[str, Measured], likeness: Likeness | None) -> str:
    """The table. Its last line is batchdeck's figure over llama.cpp's, where both have one."""
    rows = [("", *_UNITS), ("", *_UNITS.values())]
    figures = {name: found.cells() for name, found in measured.items()}
    for name, cells in figures.items():
        rows.append((name, *(_number(column, cells[column]) for column in _UNITS)))
    if likeness is not None:
        wanted = {"perplexity": likeness.perplexity}
        of_reference = (_number(column, wanted.get(column, math.nan)) for column in _UNITS)
        rows.append((_REFERENCE, *of_reference))
    if OURS in figures and LLAMA in figures:
        rows.append((f"{OURS} / {LLAMA}", *_ratios(figures[OURS], figures[LLAMA])))
    return "\n".join(align(rows, range(1, len(_UNITS) + 1)))


def _ratios(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    found = []
    for column in _UNITS:
        ratio = ours[column] / theirs[column] if column in _RATIOS else math.nan
        found.append("" if math.isnan(ratio) else f"{ratio:.2f}x")
    return found


def _number(column: str, value: float) -> str:
    digits = 0 if column in _WHOLE else _DIGITS.get(column, 1)
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"
