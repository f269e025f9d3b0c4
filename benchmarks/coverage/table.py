"""Table: the survey's rows as they come, and its totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.process.columns import row as line
from benchmarks.coverage.rows import MODELS, NAMES, Kind, Row
from benchmarks.coverage.survey import By, Outcome

_WIDTHS = (-32, -10, 4, -44)
_WHAT = {
    Kind.TEXT: "text types",
    Kind.WRAPPER: "wrappers",
    Kind.FORMAT: "formats",
    Kind.DISK: "types in a format of theirs",
}

HEAD = (
    line(
        (
            "type or format",
            "by",
            "off",
            "result",
        ),
        _WIDTHS,
    )
    + " detail"
)


def to_line(outcome: Outcome) -> str:
    """A row's line."""
    off = "" if outcome.off_path is None else str(outcome.off_path)
    if outcome.by is By.MODULES:
        off = "all"
    cells = line((outcome.row.name, outcome.by, off, outcome.result), _WIDTHS)
    said = "; ".join(filter(None, (outcome.detail, *outcome.notes)))
    return f"{cells.ljust(sum(map(abs, _WIDTHS)) + len(_WIDTHS) - 1)} {said}".rstrip()


def totals(outcomes: Sequence[Outcome]) -> list[str]:
    """The number served of each kind, and of the models that matter most, as far as they were
    tried."""
    by_row = {outcome.row: outcome for outcome in outcomes}
    lines = [_total(kind, by_row) for kind in Kind]
    tried = {name: rows for name, rows in MODELS.items() if all(row in by_row for row in rows)}
    if tried:
        served = [name for name, rows in tried.items() if all(by_row[r].is_served for r in rows)]
        of = len(MODELS) if len(tried) == len(MODELS) else f"the {len(tried)} tried"
        lines.append(f"the {len(MODELS)} as found on disk served: {len(served)} of {of}")
        if rest := [name for name in tried if name not in served]:
            lines.append("not served of these: " + "; ".join(rest))
    return [line for line in lines if line]


def _total(kind: Kind, by_row: Mapping[Row, Outcome]) -> str:
    outcomes = [outcome for row, outcome in by_row.items() if row.kind is kind]
    if not outcomes:
        return ""
    served = sum(outcome.is_served for outcome in outcomes)
    of = len(NAMES[kind]) if len(outcomes) == len(NAMES[kind]) else f"the {len(outcomes)} tried"
    counts = Counter(outcome.by for outcome in outcomes)
    parts = ", ".join(f"{by} {counts[by]}" for by in By if counts[by])
    return f"{_WHAT[kind]} served: {served} of {of} ({parts})"
