"""Glyphs: every character the dashboard draws with, as Unicode and as ASCII."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.api.lifecycle import FinishReason, RequestState
from engine.api.snapshot import RequestView


class Mark(StrEnum):
    """State of a session; the value is the word shown beside its glyph."""

    DECODE = "decode"
    PREFILL = "prefill"
    QUEUED = "queued"
    PREEMPTED = "preempted"
    PAUSED = "paused"
    DONE = "done"
    CUT = "cut off"
    STOPPED = "stopped"
    FAILED = "error"
    IDLE = "idle"


def state_mark(view: RequestView, paused: bool = False) -> Mark:
    """How a request's state is shown, while the engine is `paused` or not."""
    match view.state:
        case RequestState.WAITING:
            return Mark.QUEUED
        case RequestState.PREEMPTED:
            return Mark.PREEMPTED
        case RequestState.RUNNING if paused:
            return Mark.PAUSED
        case RequestState.RUNNING:
            return Mark.PREFILL if view.prefilling else Mark.DECODE
    match view.finish_reason:
        case FinishReason.ERROR:
            return Mark.FAILED
        case FinishReason.ABORT:
            return Mark.STOPPED
        case FinishReason.LENGTH:
            return Mark.CUT
    return Mark.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """One set of characters, each one cell wide.

    Attributes:
        unicode: whether text beyond ASCII may be shown.
        marks: state of a session.
        ramp: levels of a sparkline, from low to high.
        prefill, decode: ramps of the batch chart, one step of height a character; textures differ,
            so that the two are told apart without colour.
        waste: cells of the batch chart that a padded batch would compute for nothing.
        budget: lines of the chart near the bottom, in the middle and near the top of a cell.
        tick, tick_head: where a knob changed.
        shared, reserved, pinned, cached, free, unknown: cells of the KV map that show no owner's
            letter.
        bar, rest: the two parts of a meter.
        frame, focused: corners and edges; they differ so that focus needs no colour.
    """

    unicode: bool
    marks: Mapping[Mark, str]
    ramp: str
    prefill: str
    decode: str
    waste: str
    budget: str
    tick: str
    tick_head: str
    axis: str
    shared: str = "#"
    reserved: str
    pinned: str
    cached: str = "~"
    free: str
    unknown: str = "?"
    bar: str
    rest: str
    less: str
    more: str
    cursor: str
    up: str
    down: str
    divider: str
    frame: tuple[str, str, str, str, str, str]
    focused: tuple[str, str, str, str, str, str]
    thumb: str

    def meter(self, share: float, width: int) -> str:
        """A bar of `width` cells, filled to `share` of 1."""
        filled = round(min(max(share, 0.0), 1.0) * width) if math.isfinite(share) else 0
        return self.bar * filled + self.rest * (width - filled)

    def fit(self, text: str) -> str:
        """`text` in this set: control characters, which would move the cursor, become spaces."""
        if not text.isprintable():
            text = "".join(c if c.isprintable() else " " for c in text)
        if not self.unicode and not text.isascii():
            text = text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
        return text


_PLAIN = str.maketrans("–—·…×°→≤µ‘’“”", "---~x ><u''\"\"")

UNICODE = Glyphs(
    unicode=True,
    marks={
        Mark.DECODE: "●",
        Mark.PREFILL: "◐",
        Mark.QUEUED: "◌",
        Mark.PREEMPTED: "⇄",
        Mark.PAUSED: "‖",
        Mark.DONE: "✓",
        Mark.CUT: "…",
        Mark.STOPPED: "■",
        Mark.FAILED: "✗",
        Mark.IDLE: "○",
    },
    ramp="▁▂▃▄▅▆▇█",
    prefill="▁▂▃▄▅▆▇█",
    decode="⣀⣀⣤⣤⣶⣶⣿⣿",
    waste="░",
    budget="▁─▔",
    tick="┊",
    tick_head="▼",
    axis="┤",
    reserved="░",
    pinned="◆",
    free="·",
    bar="█",
    rest="░",
    less="◂",
    more="▸",
    cursor="▸",
    up="▲",
    down="▼",
    divider="│",
    frame=("╭", "─", "╮", "│", "╰", "╯"),
    focused=("┏", "━", "┓", "┃", "┗", "┛"),
    thumb="█",
)

ASCII = Glyphs(
    unicode=False,
    marks={
        Mark.DECODE: "*",
        Mark.PREFILL: "%",
        Mark.QUEUED: ".",
        Mark.PREEMPTED: "<",
        Mark.PAUSED: "|",
        Mark.DONE: "+",
        Mark.CUT: "~",
        Mark.STOPPED: "=",
        Mark.FAILED: "x",
        Mark.IDLE: "o",
    },
    ramp="_.-:=+*#",
    prefill="#",
    decode=".",
    waste="/",
    budget="---",
    tick=":",
    tick_head="v",
    axis="|",
    reserved="_",
    pinned="=",
    free=".",
    bar="#",
    rest=".",
    less="<",
    more=">",
    cursor=">",
    up="^",
    down="v",
    divider="|",
    frame=("+", "-", "+", "|", "+", "+"),
    focused=("*", "=", "*", "|", "*", "*"),
    thumb="#",
)
