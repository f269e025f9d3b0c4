"""CaptionLine: a sentence that explains what is on the screen."""

from __future__ import annotations

from textwrap import wrap

from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line
from widgets.line_view import LineView

_INDENT = 2


class CaptionLine(LineView):
    """One sentence, on two lines if one is too short."""

    DEFAULT_CSS = """
    CaptionLine { height: 1; }
    .-narrow CaptionLine, .-tiny CaptionLine { height: 2; }
    """

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._text = ""

    def show(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        room = width - _INDENT
        parts = wrap(self._text, room, max_lines=height, placeholder="…") if room > 1 else []
        palette = self.palette
        lines = []
        for number, part in enumerate(parts):
            line = self.line(width)
            line.add(" " if number else self.glyphs.cursor, palette.strong).add(" ", palette.text)
            lines.append(line.add(part, palette.strong).pad(palette.text))
        return lines
