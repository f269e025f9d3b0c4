"""Effect of a change of knobs, as text. The page's knob_panel.js has the same rules for text."""

from __future__ import annotations

from engine.api.effect import Effect, Figure
from widgets.figures import UNKNOWN, compact, duration, percent

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
