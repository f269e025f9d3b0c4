"""PressKey: a dialog for a key."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Label

from app.screens.dialogs.dialog import Dialog


class PressKey(Dialog[str]):
    """Asks for a key by having it pressed. None if it was cancelled.

    While it is open, keys that act everywhere do not, so that they can be chosen.

    Args:
        what: what the key is to do.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(f"Press the key for: {self._what}", markup=False)
            yield Label(f"{self.key_of('dismiss(None)')} leaves it as it is.")

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss(event.key)
