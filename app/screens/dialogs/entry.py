"""Entry: a line that is typed in a dialog."""

from __future__ import annotations

from textual import events

from widgets.key_order import run_bound
from widgets.line_input import LineInput


class Entry(LineInput):
    """A line input, whose keys and text take effect in the order in which they were typed."""

    def on_mount(self) -> None:
        # A blinking cursor would repaint an idle screen twice a second.
        self.cursor_blink = False

    async def on_key(self, event: events.Key) -> None:
        await run_bound(self, event)
