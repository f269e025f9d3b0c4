"""Confirm: a dialog that asks whether something is meant."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Label

from app.screens.dialogs.dialog import Dialog


class Confirm(Dialog[bool]):
    """Asks whether something that cannot be taken back is meant.

    Args:
        question: what is asked.
        deed: a verb for what Enter does.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "dismiss(True)", "Yes", tooltip="Yes, that is meant", id="dialog.confirm")
    ]

    def __init__(self, question: str, deed: str) -> None:
        super().__init__()
        self._question = question
        self._deed = deed

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            do, leave = self.key_of("dismiss(True)"), self.key_of("dismiss(None)")
            yield Label(f"{do} to {self._deed}, {leave} to leave it.")
