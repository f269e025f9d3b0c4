"""Finder: a dialog with a list, and a line above it to type words in that find some of it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import OptionList

from app.screens.dialogs.dialog import Dialog, T


class Finder(Dialog[T]):
    """Has the cursor of the list move while the line has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="dialog.up", priority=True),
        Binding("down", "move(1)", "Down", show=False, id="dialog.down", priority=True),
    ]

    @property
    def options(self) -> OptionList:
        return self.query_one(OptionList)

    @property
    def marked(self) -> str:
        """The id of the option under the cursor; empty if there is none."""
        option = self.options.highlighted_option
        return option.id or "" if option is not None else ""

    def action_move(self, places: int) -> None:
        if places < 0:
            self.options.action_cursor_up()
        else:
            self.options.action_cursor_down()
