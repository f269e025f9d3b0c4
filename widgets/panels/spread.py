"""Spread: how many samples fall into each range, as bars."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from widgets.figures import compact, duration
from widgets.line import Line
from widgets.line_view import LineView

_LABEL_WIDTH = 7
_COUNT_WIDTH = 5


def ranges(values: Sequence[float], limit: int) -> list[tuple[float, int]]:
    """Upper ends of at most `limit` ranges, at 1, 2, 5, 10 ..., and the number of values in each.
    The first one includes all below it."""
    if not values or limit <= 0:
        return []
    edges = [step * 10.0**power for power in range(-4, 5) for step in (1, 2, 5)]
    # A difference of two times must not exceed an edge by a rounding error.
    places = [bisect_left(edges, value * (1 - 1e-9)) for value in values]
    last = min(max(places), len(edges) - 1)
    first = max(min(*places, last), last - limit + 1)
    counts = [0] * (last - first + 1)
    for place in places:
        counts[min(max(place, first), last) - first] += 1
    return list(zip(edges[first : last + 1], counts, strict=True))


def spread(
    view: LineView, values: Sequence[float], target: float | None, width: int, height: int
) -> list[Line]:
    """A bar for each range of seconds, shortest times first. Ranges beyond the target are
    coloured."""
    palette, lines = view.palette, []
    found = ranges(values, height)
    most = max((number for _, number in found), default=0)
    for edge, number in found:
        line = view.line(width).cell(f"≤{duration(edge)}", _LABEL_WIDTH, palette.muted, "right")
        line.cell(compact(number), _COUNT_WIDTH, palette.text, "right").add(" ", palette.text)
        late = target is not None and edge > target
        length = max(round(line.room * number / most), 1) if number else 0
        bar = view.glyphs.bar * min(length, line.room)
        lines.append(line.add(bar, palette.warn if late else palette.decode))
    return lines
