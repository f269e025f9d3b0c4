"""AsciiOnly: replaces the non-ASCII drawing of Textual's own widgets."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

# Our own views have their own glyphs; these are of dialogs, scrollbars, toasts and palette. Text in
# other scripts stays as it is.
_PLAIN = str.maketrans(
    dict(zip("–—·…×≤µ‘’“”•←→↑↓‹›⏎⎵▸", "---~x<u''\"\"*<>^v<><_>", strict=True))
    | dict.fromkeys("─━▁▂▔▀▄═", "-")
    | dict.fromkeys("│┃▌▐▎▊▏▕║", "|")
    | dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛╔╗╚╝", "+")
    | dict.fromkeys("▃▅▆▇█▉", "#")
    | {"🔎": "> "}
)


class AsciiOnly(LineFilter):
    """Replaces lines, bars, arrows and typographic signs by ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(_PLAIN), segment.style, segment.control)
            for segment in segments
        ]
