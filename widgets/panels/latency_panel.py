"""LatencyPanel: percentiles of the last minute, and their course."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType

from engine.api.glossary import gloss, glosses
from engine.api.knobs import KnobChange
from engine.api.snapshot import Goodput, LatencyView, Totals
from engine.api.telemetry import Distribution, percentile
from widgets.figures import compact, duration, lasting, percent
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten, shorten_parts
from widgets.line_view import LineView
from widgets.panels.panel import Panel
from widgets.panels.plot import AXIS_WIDTH, Plot

_LABEL_WIDTH = 13
_MIN_LABEL_WIDTH = 6
_FIGURE_WIDTH = 6
_FIGURE_LINES = 6
_MIN_CHART = 3
_MIN_NAMED_CHART = 4  # A lower one has no line with its name: the cursor is on its latency.
_CHART = 9
_SPREAD_WIDTH = 32
NAMES = ("TTFT", "TPOT", "ITL", "queue")
SPANS = (60.0, 120.0, 300.0, 600.0)
_ZOOMED_SPANS = 2  # A panel that fills the screen shows a time span so many places further on.
_RANGE_WIDTH = 7
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
        line = view.line(width).cell(f"≤{duration(edge)}", _RANGE_WIDTH, palette.muted, "right")
        line.cell(compact(number), _COUNT_WIDTH, palette.text, "right").add(" ", palette.text)
        late = target is not None and edge > target
        length = max(round(line.room * number / most), 1) if number else 0
        bar = view.glyphs.bar * min(length, line.room)
        lines.append(line.add(bar, palette.warn if late else palette.decode))
    return lines


class LatencyPanel(Panel, can_focus=True):
    """Median and 99th percentile of each latency. Below, as far as there is space, the course and
    the spread of the chosen one, in a large panel of all.

    TTFT and TPOT are judged by their targets.
    """

    GLOSS: ClassVar[Mapping[str, str]] = glosses(
        *("TTFT", "TPOT", "ITL", "queue", "p50", "p99", "n", "good", "late"),
        *("prefix hit", "preempted"),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "Chart above", show=False, id="latency.up"),
        Binding(
            "down", "choose(1)", "Chart", tooltip="Chart below", key_display="↑↓", id="latency.down"
        ),
        Binding(
            "plus,equals_sign",
            "span(-1)",
            "Shorter",
            tooltip="Draw a shorter time",
            key_display="+",
            id="latency.in",
        ),
        Binding(
            "minus",
            "span(1)",
            "Longer",
            tooltip="Draw a longer time",
            key_display="-",
            id="latency.out",
        ),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.chosen = 0
        self.span = SPANS[0]
        self._latency: LatencyView | None = None
        self._totals = Totals()
        self._goodput: Goodput | None = None
        self._marks: Sequence[KnobChange] = ()

    def show(
        self,
        latency: LatencyView,
        totals: Totals,
        goodput: Goodput | None = None,
        marks: Sequence[KnobChange] = (),
    ) -> None:
        """Show the newest distributions.

        Args:
            marks: changes of knobs, oldest first.
        """
        self._latency, self._totals, self._goodput = latency, totals, goodput
        self._marks = marks
        self.redraw()

    def action_choose(self, step: int) -> None:
        self.chosen = (self.chosen + step) % len(NAMES)
        self.redraw()

    def action_span(self, step: int) -> None:
        place = SPANS.index(self.span) + step
        self.span = SPANS[min(max(place, 0), len(SPANS) - 1)]
        self.redraw()

    def title(self) -> str:
        window = "" if self._latency is None else f" {lasting(self._latency.window)}"
        good = self._goodput
        if good is None or not math.isfinite(good.share):
            return f"Latency{window}"
        late = f", {compact(good.late)} late" if good.late else ""
        return f"Latency{window} · good {percent(good.share)}{late}"

    def footer(self) -> str:
        """The meanings of the words, while the panel has the focus."""
        return gloss(NAMES[self.chosen], "p99", "good") if self.has_focus else ""

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        if self._latency is None:
            return [self.line(width).add(shorten("Nothing measured yet.", width), palette.muted)]
        lines = self._figures(width, height)
        room = height - len(lines)
        number = min(max(room // _CHART, 1), len(NAMES)) if room >= _MIN_CHART else 0
        for place in range(number):
            which = place if number == len(NAMES) else (self.chosen + place) % len(NAMES)
            lines += self._charts(which, width, room // number)
        return lines

    def _figures(self, width: int, height: int) -> list[Line]:
        """The table, with a head and the counters if they fit."""
        palette = self.palette
        # A number must not be cut, because it would become another number. So the count of samples
        # is dropped first, then labels, then the median.
        counted = width >= _LABEL_WIDTH + 3 * _FIGURE_WIDTH
        both = width >= _MIN_LABEL_WIDTH + 2 * _FIGURE_WIDTH
        room = width - (3 if counted else 2 if both else 1) * _FIGURE_WIDTH
        label = min(max(room, _MIN_LABEL_WIDTH - 1), _LABEL_WIDTH)
        lines = []
        if height > len(NAMES):
            head = self.line(width).cell("", label, palette.muted)
            head.cell("p50", _FIGURE_WIDTH if both else 0, palette.muted, "right")
            head.cell("p99", _FIGURE_WIDTH, palette.muted, "right")
            lines.append(head.cell("n", _FIGURE_WIDTH if counted else 0, palette.muted, "right"))
        for place, name in enumerate(NAMES):
            of, target = self._distribution(place), self._target(name)
            cursor = self.glyphs.cursor if place == self.chosen else " "
            known = f"{cursor}{name}"
            if target is not None and label == _LABEL_WIDTH:
                known += f" ≤{duration(target)}"
            line = self.line(width).cell(known, label, palette.muted)
            if of.count:
                ordinary, outer = self._styles(name, of)
                line.cell(duration(of.p50), _FIGURE_WIDTH if both else 0, ordinary, "right")
                line.cell(duration(of.p99), _FIGURE_WIDTH, outer, "right")
                counts = _FIGURE_WIDTH if counted else 0
                line.cell(compact(of.count), counts, palette.muted, "right")
            else:
                line.cell("no sample", min(12, line.room), palette.muted, "right")
            lines.append(line)
        if height >= _FIGURE_LINES:
            totals = self._totals
            hit = percent(_share(totals.prefix_hit_tokens, totals.prefix_queried_tokens))
            text = f" prefix hit {hit} · preempted {compact(totals.preemptions)} · since the start"
            lines.append(self.line(width).add(shorten_parts(text, width), palette.muted))
        return lines

    def _charts(self, which: int, width: int, height: int) -> list[Line]:
        """A latency over time, and its spread beside or below it, with a heading if it fits."""
        assert self._latency is not None
        name, target = NAMES[which], self._target(NAMES[which])
        samples = self._latency.samples.get(name.lower())
        until, span = self._latency.until, self._visible_span
        times, values = samples.between(until - span, until) if samples else ((), ())
        beside = width >= 2 * _SPREAD_WIDTH + AXIS_WIDTH
        below = 0 if beside or height < 2 * _CHART else height // 3
        plot_width = width - _SPREAD_WIDTH - 2 if beside else width
        what = f"{name} p99 over {lasting(span)}"
        if target is not None:
            what += f" · target ≤{duration(target)}"
        said = self.line(width).cell(
            shorten_parts(what, plot_width), plot_width, self.palette.strong
        )
        if beside:
            said.add("  ", self.palette.text).add(f"{name} · samples by time", self.palette.muted)
        head = [said] if height >= _MIN_NAMED_CHART else []
        if not values:
            # The TPOT above also includes running requests.
            runs = name == "TPOT" and self._distribution(which).count
            why = f"no reply has ended in {lasting(span)}" if runs else "no sample"
            return [self.line(width).add(shorten(f"{name}: {why}", width), self.palette.muted)]
        plot = Plot(
            points=_worst(times, values, span / (2 * max(plot_width - AXIS_WIDTH - 1, 1))),
            until=until,
            span=span,
            target=target,
            marks=[change.time for change in self._marks if change.time >= until - span],
            label=duration,
        )
        lines = plot.lines(self, plot_width, height - len(head) - below)
        if beside:
            bars = spread(self, values, target, _SPREAD_WIDTH, len(lines))
            lines = [self._beside(*pair, width) for pair in zip_longest(lines, bars)]
        elif below:
            lines += spread(self, values, target, width, below)
        return [*head, *lines]

    def _beside(self, left: Line, right: Line | None, width: int) -> Line:
        """Two lines as one, with the right one aligned right."""
        blank, room = self.palette.text, width - _SPREAD_WIDTH
        line = (
            self.line(width).extend(left.segments, room - 2 - left.room).pad(blank, _SPREAD_WIDTH)
        )
        return line if right is None else line.extend(right.segments, _SPREAD_WIDTH - right.room)

    @property
    def _visible_span(self) -> float:
        place = SPANS.index(self.span) + (_ZOOMED_SPANS if self.is_maximized else 0)
        return SPANS[min(place, len(SPANS) - 1)]

    def _distribution(self, place: int) -> Distribution:
        assert self._latency is not None
        view = self._latency
        return (view.ttft, view.tpot, view.itl, view.queue)[place]

    def _target(self, name: str) -> float | None:
        """The upper limit of a good latency, in seconds."""
        good = self._goodput
        return {"TTFT": good.ttft_target, "TPOT": good.tpot_target}.get(name) if good else None

    def _styles(self, name: str, of: Distribution) -> tuple[Style, Style]:
        """The styles of median and 99th percentile. If the latter is above the target, it is a
        warning; if the median is, it is bad."""
        palette, target = self.palette, self._target(name)
        if target is None:
            return palette.text, palette.strong
        if of.p50 > target:
            return palette.bad, palette.bad
        return palette.text, palette.warn if of.p99 > target else palette.good


def _worst(
    times: Sequence[float], values: Sequence[float], seconds: float
) -> list[tuple[float, float]]:
    """The 99th percentile of each segment of so many seconds that has samples, at its last one."""
    points: list[tuple[float, float]] = []
    first = 0
    for place in range(1, len(times) + 1):
        if place == len(times) or times[place] // seconds > times[first] // seconds:
            points.append((times[place - 1], percentile(sorted(values[first:place]), 0.99)))
            first = place
    return points


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
