"""Panel: a view in a frame with a title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.cells import cell_len

from widgets.figures import count
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten, shorten_parts
from widgets.line_view import LineView

MIN_FRAME_WIDTH = 16
MIN_FRAME_HEIGHT = 4


class Panel(LineView):
    """Base class of the framed views.

    The frame is drawn here and not by CSS: the titles have figures that change all the time, and
    setting `Widget.border_title` repaints the whole widget. If a frame does not fit, the first line
    is the title and the rest is the body.

    Attributes:
        keys: the keys in the panel's own texts, by their actions.
    """

    KEYS: ClassVar[Mapping[str, str]] = {}
    """The default of `keys`, without the user's own bindings."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.keys = self.KEYS

    def hint(self, keys: Mapping[str, str]) -> None:
        """Set `keys` to the current bindings."""
        self.keys = keys
        self.redraw()

    def title(self) -> str:
        """The text at the top of the frame. The part before the first " · " is the panel's name."""
        raise NotImplementedError

    def footer(self) -> str:
        """The text at the bottom of the frame, as far as it fits."""
        return ""

    @property
    def num_below(self) -> int:
        """The number of rows below those in view, which the frame states."""
        return 0

    def body(self, width: int, height: int) -> list[Line]:
        """The content of the frame, as at most `height` lines of at most `width` cells."""
        raise NotImplementedError

    @property
    def framed(self) -> bool:
        return self.size.width >= MIN_FRAME_WIDTH and self.size.height >= MIN_FRAME_HEIGHT

    def thumb(self, height: int) -> range:
        """The lines of the right edge that mark the visible part of the content."""
        return range(0)

    def draw(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        if not self.framed:
            head = self.line(width)
            self._write_title(head, width)
            return [head, *self.body(width, height - 1)]
        focused = self.has_focus_within  # also while a field of the panel has the focus
        frame = self.glyphs.focused if focused else self.glyphs.frame
        style = palette.focused if focused else palette.frame
        top_left, edge, top_right, side, bottom_left, bottom_right = frame
        top = self.line(width).add(top_left + edge + " ", style)
        self._write_title(top, width - 5)
        top.add(" ", style).add(edge * (top.room - 1) + top_right, style)
        inner = width - 4
        body = self.body(inner, height - 2)[: height - 2]
        body += [self.line(inner) for _ in range(height - 2 - len(body))]
        thumb = self.thumb(height - 2)
        lines = [top]
        for y, content in enumerate(body):
            line = self.line(width).add(side, style).add(" ", palette.text)
            line.extend(content.pad(palette.text).segments, inner).add(" ", palette.text)
            edge_style = palette.muted if y in thumb and not focused else style
            lines.append(line.add(self.glyphs.thumb if y in thumb else side, edge_style))
        bottom = self.line(width).add(bottom_left + edge, style)
        footer, room = self.footer(), width - 5
        more = f" +{count(self.num_below)} more " if self.num_below else ""
        # The first part of the footer comes first.
        if cell_len(footer.partition(" · ")[0]) > room - len(more):
            more = ""
        room -= len(more)
        if footer := self.glyphs.fit(shorten_parts(footer, room)):
            bottom.add(" ", style).add(shorten(footer, room), palette.muted).add(" ", style)
        bottom.add(edge * (bottom.room - 1 - len(more)), style).add(more, palette.muted)
        bottom.add(bottom_right, style)
        return [*lines, bottom]

    def _write_title(self, line: Line, width: int) -> None:
        name, dot, rest = shorten_parts(self.title(), width).partition(" · ")
        # Of many panels, the one with the focus stands out.
        style = self.palette.strong if self.has_focus_within else self.palette.text
        line.add(name, style).add(dot + rest, self.palette.muted)
