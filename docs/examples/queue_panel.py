"""A panel of one's own: who waits, for how long, and why."""

from __future__ import annotations

from engine.api.snapshot import Snapshot
from engine.api.waiting import in_words
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line
from widgets.panels.panel import Panel

_TITLE_WIDTH = 14
_SECONDS_WIDTH = 8


class QueuePanel(Panel):
    """The requests that wait, in the order of the queue."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.redraw()

    def title(self) -> str:
        return f"Queue · {self._snapshot.num_waiting:,} waiting" if self._snapshot else "Queue"

    def body(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        if self._snapshot is None or not self._snapshot.num_waiting:
            return [self.line(width).cell("Nobody waits.", width, palette.muted)]
        lines = []
        for request in self._snapshot.requests:
            if request.wait is None:
                continue
            line = self.line(width).cell(request.origin.title, _TITLE_WIDTH, palette.text)
            seconds = "" if request.queue is None else f"{request.queue:.1f} s"
            line.cell(seconds, _SECONDS_WIDTH, palette.text, align="right").add("  ", palette.text)
            lines.append(line.cell(in_words(request.wait), line.room, palette.muted))
        return lines[:height]
