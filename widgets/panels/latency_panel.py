"""LatencyPanel: shows percentiles of the last minute, and how they moved."""

from __future__ import annotations

import math

from rich.style import Style

from engine.api.snapshot import Goodput, LatencyView, Totals
from engine.api.telemetry import Distribution
from widgets.figures import compact, ms, percent
from widgets.glyphs import UNICODE, Glyphs
from widgets.history import History
from widgets.line import Line, shorten
from widgets.panels.panel import Panel

_LABEL_WIDTH = 10
_MIN_LABEL_WIDTH = 4
_FIGURE_WIDTH = 6
_NAMES = ("TTFT", "TPOT", "ITL", "queue", "prefix hit", "preempted")


class LatencyPanel(Panel):
    """Median and 99th percentile of each latency in milliseconds, and the course of the latter.

    TTFT and TPOT are judged by their targets, which stand beside their names if there is room.
    """

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._latency: LatencyView | None = None
        self._totals = Totals()
        self._goodput: Goodput | None = None
        self._histories = {name: History() for name in _NAMES}

    def show(self, latency: LatencyView, totals: Totals, goodput: Goodput | None = None) -> None:
        """Show the newest distributions. Each call adds a point to the courses."""
        before = totals if self._latency is None else self._totals
        self._latency, self._totals, self._goodput = latency, totals, goodput
        if totals.requests < before.requests:  # a model was loaded and counts from 0
            before = Totals()
            for history in self._histories.values():
                history.clear()
        hit = _share(
            totals.prefix_hit_tokens - before.prefix_hit_tokens,
            totals.prefix_queried_tokens - before.prefix_queried_tokens,
        )
        points = (
            *(distribution.p99 for distribution in _distributions(latency)),
            hit,
            totals.preemptions - before.preemptions,
        )
        for name, value in zip(_NAMES, points, strict=True):
            self._histories[name].add(value)
        self.redraw()

    def title(self) -> str:
        window = "" if self._latency is None else f" {self._latency.window:.0f} s"
        good = self._goodput
        share = f" · good {percent(good.share)}" if good and math.isfinite(good.share) else ""
        return f"Latency{window} · ms{share}"

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        if self._latency is None:
            return [self.line(width).add(shorten("Nothing measured yet.", width), palette.muted)]
        figures = [(ms(d.p50), ms(d.p99)) for d in _distributions(self._latency)]
        totals = self._totals
        hit = percent(_share(totals.prefix_hit_tokens, totals.prefix_queried_tokens))
        figures += [("", hit), ("", compact(totals.preemptions))]
        # A number must not be cut, for it would be another number. So labels give way first, and
        # then the median.
        both = width >= _MIN_LABEL_WIDTH + 2 * _FIGURE_WIDTH
        room = width - (2 if both else 1) * _FIGURE_WIDTH
        label = min(max(room, _MIN_LABEL_WIDTH), _LABEL_WIDTH)
        lines = []
        for name, (median, high) in zip(_NAMES, figures, strict=True):
            target = self._targets.get(name)
            known = f"{name} ≤{ms(target)}" if target and label == _LABEL_WIDTH else name
            line = self.line(width).cell(known, label, palette.muted)
            ordinary, outer = self._styles(name)
            line.cell(median, _FIGURE_WIDTH if both else 0, ordinary, "right")
            line.cell(high, _FIGURE_WIDTH, outer, "right").add("  ", palette.text)
            spark = self._histories[name].sparkline(self.glyphs.ramp, line.room)
            lines.append(line.add(spark, palette.decode))
        if height > len(lines):
            head = self.line(width).cell("", label, palette.muted)
            head.cell("p50", _FIGURE_WIDTH if both else 0, palette.muted, "right")
            head.cell("p99", _FIGURE_WIDTH, palette.muted, "right").add("  ", palette.muted)
            lines.insert(0, head.cell("p99 over time", head.room, palette.muted, "right"))
        return lines

    @property
    def _targets(self) -> dict[str, float]:
        """The most that each latency may be to count as good, in seconds."""
        good = self._goodput
        return {"TTFT": good.ttft_target, "TPOT": good.tpot_target} if good else {}

    def _styles(self, name: str) -> tuple[Style, Style]:
        """The styles of median and 99th percentile. If the latter is above the target, it is shown
        as a warning; if the median is, it is shown as bad."""
        palette, target = self.palette, self._targets.get(name)
        if target is None or self._latency is None:
            return palette.text, palette.strong
        distribution = dict(zip(_NAMES, _distributions(self._latency), strict=False))[name]
        if distribution.p50 > target:
            return palette.bad, palette.bad
        return palette.text, palette.warn if distribution.p99 > target else palette.good


def _distributions(latency: LatencyView) -> tuple[Distribution, ...]:
    return latency.ttft, latency.tpot, latency.itl, latency.queue


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
