"""PromptHead: the rule above the prompt, with the settings of the chat and the context used."""

from __future__ import annotations

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.message import Message

from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.line_view import LineView

_LEAST = 8  # cells, below which the settings are left out


class PromptHead(LineView):
    """One line. A click on it opens the settings."""

    DEFAULT_CSS = """
    PromptHead { height: 1; color: $foreground 60%; }
    """

    class SettingsWanted(Message):
        """Show the settings of the chat."""

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__(glyphs)
        self._said = "", "", False

    def on_mount(self) -> None:
        self.tooltip = "The settings of this chat; a click changes them"

    def show(self, settings: str, context: str, *, too_long: bool) -> None:
        """Show settings, and how much of the context is used.

        Args:
            too_long: whether the draft does not fit into the context.
        """
        self._said = settings, context, too_long
        if self.is_other(settings, context, too_long):
            self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        settings, context, too_long = self._said
        palette, line = self.palette, self.line(width)
        right = f" {shorten(context, width - 4)} " if context else ""
        room = width - cell_len(right) - 5
        self._rule(line, 1, palette.text)
        if settings and room >= _LEAST:
            line.add(f" {shorten(settings, room)} ", palette.muted)
        self._rule(line, line.room - cell_len(right) - 1, palette.text)
        line.add(right, palette.bad if too_long else palette.muted)
        self._rule(line, line.room, palette.text)
        return [line]

    def on_click(self, _event: events.Click) -> None:
        self.post_message(self.SettingsWanted())

    def _rule(self, line: Line, width: int, style: Style) -> None:
        line.add(self.glyphs.frame[1] * width, style)
