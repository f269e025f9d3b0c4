"""LineInput and LinesInput: texts that are edited by visible characters (grapheme clusters)."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.widget import Widget
from textual.widgets import Input, TextArea
from textual.widgets.input import Selection


def edges(text: str) -> Sequence[int]:
    """Where the visible characters (grapheme clusters) of a text begin, and where the text ends: an
    emoji with its colour is one character, and so is a letter with its accents.
    """
    if text.isascii():
        return range(len(text) + 1)
    import regex  # It takes 8 ms, and few texts need it.

    return [0, *(found.end() for found in regex.finditer(r"\X", text))]


class LineInput(Input):
    """Textual's input, in which a key deletes or passes a whole character, not a code point."""

    def action_cursor_left(self, select: bool = False) -> None:
        if select:
            self.selection = Selection(self.selection.start, self._before)
        elif self.selection.is_empty:
            self.cursor_position = self._before
        else:
            super().action_cursor_left()

    def action_cursor_right(self, select: bool = False) -> None:
        if select:
            self.selection = Selection(self.selection.start, self._after)
        elif self.selection.is_empty and not self.cursor_at_end:
            self.cursor_position = self._after
        else:
            super().action_cursor_right()

    def action_delete_left(self) -> None:
        if self.selection.is_empty:
            self.delete(self._before, self.cursor_position)
        else:
            super().action_delete_left()

    def action_delete_right(self) -> None:
        if self.selection.is_empty:
            self.delete(self.cursor_position, self._after)
        else:
            super().action_delete_right()

    @property
    def _before(self) -> int:
        """Where the character before the cursor begins."""
        at = self.cursor_position
        return edges(self.value[:at])[-2] if at else 0

    @property
    def _after(self) -> int:
        """Where the character after the cursor ends."""
        at = self.cursor_position
        return at if self.cursor_at_end else at + edges(self.value[at:])[1]


class LinesInput(TextArea):
    """Textual's text area, in which a key deletes or passes a whole character, not a code point."""

    def get_cursor_left_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        if column == 0:
            return super().get_cursor_left_location()
        return row, edges(self.document[row][:column])[-2]

    def get_cursor_right_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        line = self.document[row]
        if column >= len(line):
            return super().get_cursor_right_location()
        return row, column + edges(line[column:])[1]


async def run_bound(widget: Widget, event: events.Key) -> None:
    """Run a key's binding at once, unless the key is text. The `on_key` of text widgets calls this.

    Textual runs bindings from the app's queue, while characters wait in the widget's own queue. If
    keys came faster than the screen is painted, Enter would overtake the text before it.
    """
    # Terminals without the kitty protocol, such as tmux, send Alt with a letter as a printable one.
    is_alt = event.key.startswith("alt+")
    if event.is_printable and not is_alt:
        return
    bound = widget.screen.active_bindings.get(event.key)
    if bound is not None and await widget.app.run_action(bound.binding.action, bound.node):
        event.stop()
        event.prevent_default()
    elif event.is_printable:
        event.prevent_default()  # It is not text, even if it has no binding now.
