"""AskText: a dialog for a line of text."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Label

from app.screens.dialogs.dialog import Dialog
from app.screens.dialogs.entry import Entry


class AskText(Dialog[str]):
    """Asks for a line of text. The result is None if it was cancelled or left empty."""

    def __init__(self, question: str, text: str) -> None:
        super().__init__()
        self._question = question
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            yield Entry(self._text, select_on_focus=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)
