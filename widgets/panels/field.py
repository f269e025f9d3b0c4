"""Field: a line of text for editing in a panel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from textual import events
from textual.widget import Widget
from textual.widgets.input import Selection

from widgets.harmless import printable
from widgets.line_input import LineInput, run_bound

Leaving = Literal["enter", "escape", "blur"]


class Field(LineInput):
    """A line input, open over a few cells of its panel during typing.

    It is a child of its panel from the beginning, and only visible while it is open. So keys that
    arrive together, such as Enter and those after it, find field and panel in the right state.

    Args:
        changed: called at each change of the text.
        left: called with the way in which the field was closed, once the panel has the focus again.
            After "blur" the focus is elsewhere.
        refused: called when a key or a pasted text is not allowed.
    """

    DEFAULT_CSS = """
    Field {
        display: none;
        position: absolute;
        &, &:focus, &:ansi { background: transparent; background-tint: transparent; }
        & > .input--cursor, & > .input--selection {
            background: transparent;
            color: $foreground;
            text-style: reverse;
        }
        & > .input--cursor { text-style: reverse underline; }
    }
    """

    ALLOW_MAXIMIZE = False

    def __init__(
        self,
        changed: Callable[[], None],
        left: Callable[[Leaving], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(compact=True, select_on_focus=False)
        # A blinking cursor would repaint an idle screen twice a second.
        self.cursor_blink = False
        self._changed = changed
        self._left = left
        self._refused = refused

    @property
    def is_open(self) -> bool:
        return self.display

    def open(self, text: str, *, selected: bool = False, allowed: str | None = None) -> None:
        """Edit `text`.

        Args:
            selected: whether the text is selected, so that the first key replaces it.
            allowed: a regular expression that the text must match; None allows anything.
        """
        self.restrict = allowed
        self.display = True
        self.value = text
        self.selection = Selection(0 if selected else len(text), len(text))
        self.screen.set_focus(self)
        self._changed()

    def place(self, x: int, y: int, width: int) -> None:
        """Place the field over these cells of the panel."""
        self.styles.offset = (x, y)
        self.styles.width = max(width, 1)

    def close(self) -> None:
        """Close the field and return the focus to the panel, without calling `left`."""
        if self.is_open:
            if self.has_focus:
                self.screen.set_focus(self._panel)
            self.display = False

    @property
    def _panel(self) -> Widget:
        assert isinstance(self.parent, Widget)
        return self.parent

    def watch_value(self) -> None:
        if self.is_open:
            self._changed()

    def restricted(self) -> None:
        self._refused()

    async def on_key(self, event: events.Key) -> None:
        if not self.is_open:
            # The key was typed after the one that closed the field, and is meant for the panel.
            event.prevent_default()
        elif event.key in ("enter", "escape"):
            self.close()
            self._left("enter" if event.key == "enter" else "escape")
            event.stop()
            event.prevent_default()
        else:
            if event.key in ("tab", "shift+tab"):
                self.close()  # The focus then moves on from the panel.
                self._left("blur")
            await run_bound(self, event)

    def on_paste(self, event: events.Paste) -> None:
        """Insert the first line that is not blank, without characters that a line cannot hold."""
        event.stop()
        event.prevent_default()
        lines = [line.strip("\t") for line in printable(event.text).split("\n") if line.strip()]
        if lines:
            self.replace(lines[0].replace("\t", " "), *self.selection)

    def on_blur(self) -> None:
        if self.is_open:
            self.display = False
            self._left("blur")

    def on_click(self, event: events.Click) -> None:
        event.stop()  # The panel would read the field's coordinates as its own.

    def on_resize(self) -> None:
        # The field grows after the text does: text that had to scroll may fit now.
        if self.content_width <= self.size.width:
            self.scroll_to(x=0, animate=False)
