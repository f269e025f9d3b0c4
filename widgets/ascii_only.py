"""AsciiOnly: draws in ASCII what Textual's own widgets draw otherwise."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

# Views of ours have their own glyphs; these are of dialogs, scrollbars, toasts and palette. What
# people write in other scripts stays as it is.
_PLAIN = str.maketrans(
    dict(zip("–—·…×≤µ‘’“”•←→↑↓‹›⏎⎵▸", "---~x<u''\"\"*<>^v<><_>", strict=True))
    | dict.fromkeys("─━▁▂▔▀▄═", "-")
    | dict.fromkeys("│┃▌▐▎▊▏▕║", "|")
    | dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛╔╗╚╝", "+")
    | dict.fromkeys("▃▅▆▇█▉", "#")
    | {"🔎": "> "}
)


class AsciiOnly(LineFilter):
    """Puts ASCII in the place of lines, bars, arrows and typographic signs."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(_PLAIN), segment.style, segment.control)
            for segment in segments
        ]
