"""KnobHistory: who changed which knobs and when, and the effect of the last change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from engine.api.effect import Effect, Figure
from engine.api.knobs import KnobChange
from widgets.figures import UNKNOWN, change_text, compact, duration, percent, time_of_day
from widgets.line import Line, shorten
from widgets.line_view import LineView

_NAME_WIDTH = 12
_FIGURE_WIDTH = 7
_COUNT_WIDTH = 6
_TEXTS = {"number": compact, "seconds": duration, "share": percent}


def figure_text(figure: Figure) -> str:
    return _TEXTS[figure.unit](figure.value)


def obstacle_text(effect: Effect) -> str:
    """Why the figures before and after are not comparable; empty if they are."""
    obstacle = effect.obstacle
    if obstacle is None:
        return ""
    return obstacle.words.replace("{}", f"{compact(obstacle.was)}→{compact(obstacle.now)}")


def effect_line(effect: Effect) -> str:
    """The comparable figures in one line, such as tok/s 310→402 · TTFT p50 190→240ms, and why the
    others are not."""
    if obstacle := obstacle_text(effect):
        return f"not comparable: {obstacle}"
    known, few = [], []
    for before, since, why in effect.pairs():
        then, now = figure_text(before), figure_text(since)
        if why:
            few.append(f"{before.name} not comparable: {why}")
        elif not then == now == UNKNOWN:
            known.append(f"{before.name} {_course(then, now)}")
    return " · ".join([*known, *few])


def _course(then: str, now: str) -> str:
    """Both values, with a common unit only once."""
    unit = now.lstrip("0123456789.")
    return f"{then.removesuffix(unit) if then.lstrip('0123456789.') == unit else then}→{now}"


class KnobHistory:
    """The changes of knobs, newest first, below a table of the last one's effect.

    Args:
        view: the view that it is drawn on, whose styles it uses.
    """

    def __init__(self, view: LineView) -> None:
        self._view = view
        self._changes: Sequence[KnobChange] = ()
        self._epoch = 0.0
        self.effect: Effect | None = None

    def set_changes(
        self, changes: Sequence[KnobChange], epoch: float, effect: Effect | None
    ) -> None:
        """Set the changes to draw.

        Args:
            changes: oldest first.
            epoch: the time at which the engine's clock stood at 0, in seconds since the epoch.
            effect: the effect of the last change; None if not known.
        """
        self._changes, self._epoch, self.effect = changes, epoch, effect

    def lines(self, width: int) -> list[Line]:
        if not self._changes:
            text = shorten("No knob has been changed yet.", width)
            return [self._view.line(width).add(text, self._view.palette.muted)]
        lines = self.table(width)
        for change in reversed(self._changes):
            lines += self._entry(change, width)
        return lines

    def table(self, width: int) -> list[Line]:
        """The last change's effect, and a blank line; nothing if not known."""
        return list(self._table(self.effect, width)) if self.effect else []

    def _table(self, effect: Effect, width: int) -> Iterator[Line]:
        view, palette = self._view, self._view.palette
        counts = _COUNT_WIDTH if width >= _NAME_WIDTH + 2 * (_FIGURE_WIDTH + _COUNT_WIDTH) else 0
        names = max(min(_NAME_WIDTH, width - 2 * _FIGURE_WIDTH), 0)
        head = view.line(width).cell(self._time(effect.change), names, palette.muted)
        for word in ("before", "since"):
            head.cell(word, _FIGURE_WIDTH, palette.muted, "right").cell("", counts, palette.muted)
        yield head
        obstacle = obstacle_text(effect)
        for before, since, few in effect.pairs():
            line = view.line(width).cell(before.name, names, palette.muted)
            # Figures that are not comparable must not look like an effect.
            is_compared = not (obstacle or few)
            strong = palette.strong if is_compared else palette.muted
            for figure, style in (
                (before, palette.text if is_compared else palette.muted),
                (since, strong),
            ):
                line.cell(figure_text(figure), _FIGURE_WIDTH, style, "right")
                # More does not fit, and the figure is not in doubt then.
                is_small = figure.samples is not None and figure.samples < 100
                of = f" of {figure.samples}" if is_small else ""
                line.cell(of, counts, palette.muted)
            if few and not obstacle:
                line.add(f"  {shorten(few, max(line.room - 2, 0))}", palette.muted)
            yield line
        if obstacle:
            said = shorten(f"not comparable: {obstacle}", width)
            yield view.line(width).add(said, palette.warn)
        yield view.line(width)

    def _entry(self, change: KnobChange, width: int) -> Iterator[Line]:
        palette = self._view.palette
        head = f"{self._time(change)} {change.who} "
        undo = "undo: " if change.undoes else ""
        text = textwrap.wrap(
            f"{undo}{change_text(change)}",
            max(width, len(head) + 10),
            initial_indent=" " * len(head),
            subsequent_indent=" " * 9,
        )
        yield self._view.line(width).add(head, palette.muted).add(text[0].lstrip(), palette.text)
        for line in text[1:]:
            yield self._view.line(width).add(line, palette.text)

    def _time(self, change: KnobChange) -> str:
        return time_of_day(self._epoch + change.time)
