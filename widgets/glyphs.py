"""Glyphs: every character that the dashboard draws with, as Unicode and as ASCII."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from engine.api.lifecycle import FinishReason, RequestState
from engine.api.snapshot import RequestView

# Our own views have their own glyphs; these are of dialogs, scrollbars, toasts and palette. Text in
# other scripts stays as it is.
_ASCII = str.maketrans(
    dict(zip("–—·…×≤µ‘’“”•←→↑↓‹›⏎⎵▸", "---~x<u''\"\"*<>^v<><_>", strict=True))
    | dict.fromkeys("─━▁▂▔▀▄═", "-")
    | dict.fromkeys("│┃▌▐▎▊▏▕║", "|")
    | dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛╔╗╚╝", "+")
    | dict.fromkeys("▃▅▆▇█▉", "#")
    | {"🔎": "> "}
)


class Mark(StrEnum):
    """The state of a session. The value is the word shown beside its glyph."""

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
    """The mark of a request's state.

    Args:
        paused: whether the engine is paused, so that running requests stand still.
    """
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
        marks: the sign of each state of a session.
        ramp: the levels of a sparkline, from low to high.
        prefill, decode: the levels of a cell of the batch chart, from low to high. The two have
            different textures, so that they are distinguishable without colour.
        waste: a cell of the batch chart for work that a padded batch would do in vain.
        budget: the chart's line of the budget at the bottom, in the middle and at the top of a
            cell.
        tick, tick_head: a line of the batch chart at which a knob changed, and its upper end.
        axis: the axis of the batch chart, beside a label.
        shared, reserved, pinned, cached, free, unknown: cells of the KV map without an owner's
            letter. `pinned` also marks a pinned chat in the list.
        part: a cell of the map with blocks of several states, by the share of the state that it
            shows, from low to high.
        bar, rest: the filled and the empty part of a meter.
        less, more: the arrows that change a knob, left and right of its value.
        cursor: precedes the row with the cursor.
        edge: precedes each row of the current message.
        folded, unfolded: precede a foldable part of a message.
        call, answer: precede a tool call, and a tool result.
        attachment: precedes the name of an attachment.
        up, down: the sort order of a column, and whether a priority is above or below 0.
        divider: separates the parts of a line.
        frame, focused: corners and edges of a panel, without and with the focus. They differ so
            that the focus shows without colour.
        thumb: the part of a panel's right edge that shows the position of the view.
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
    part: str
    bar: str
    rest: str
    less: str
    more: str
    cursor: str
    edge: str
    folded: str
    unfolded: str
    call: str
    answer: str
    attachment: str
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
        """`text` in the characters of this set. Control characters, which would move the cursor,
        become spaces."""
        if not text.isprintable():
            text = "".join(c if c.isprintable() else " " for c in text)
        if not self.unicode and not text.isascii():
            text = text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
        return text


_PLAIN = str.maketrans("–—·…×°←→↑↓≤µ‘’“”", "---~x <>^v<u''\"\"")

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
    part="▁▂▃▄▅▆▇█",
    bar="█",
    rest="░",
    less="◂",
    more="▸",
    cursor="▸",
    edge="▌",
    folded="▸",
    unfolded="▾",
    call="⚙",
    answer="↳",
    attachment="▤",
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
    part="-+%@",
    bar="#",
    rest=".",
    less="<",
    more=">",
    cursor=">",
    edge="|",
    folded="+",
    unfolded="-",
    call="$",
    answer="=",
    attachment="@",
    up="^",
    down="v",
    divider="|",
    frame=("+", "-", "+", "|", "+", "+"),
    focused=("*", "=", "*", "|", "*", "*"),
    thumb="#",
)


class AsciiOnly(LineFilter):
    """Replaces lines, bars, arrows and typographic signs by ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(_ASCII), segment.style, segment.control)
            for segment in segments
        ]
