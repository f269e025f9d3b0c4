"""Finder: a dialog with a list, and a line above it to type words in that find some of it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList

from app.screens.dialogs.dialog import Dialog, T


class Finder(Dialog[T]):
    """Has the cursor of the list move while the line has the focus. Home and End are the line's
    until its own cursor is there."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Row above", show=False, id="dialog.up", priority=True),
        Binding("down", "move(1)", "Row below", show=False, id="dialog.down", priority=True),
        Binding("pageup", "page(-1)", "Page up", show=False, id="dialog.page_up", priority=True),
        Binding(
            "pagedown", "page(1)", "Page down", show=False, id="dialog.page_down", priority=True
        ),
        Binding("home", "edge(-1)", "First row", show=False, id="dialog.first", priority=True),
        Binding("end", "edge(1)", "Last row", show=False, id="dialog.last", priority=True),
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

    def action_page(self, pages: int) -> None:
        if pages < 0:
            self.options.action_page_up()  # type: ignore[no-untyped-call]
        else:
            self.options.action_page_down()  # type: ignore[no-untyped-call]

    def action_edge(self, side: int) -> None:
        if side < 0:
            self.options.action_first()
        else:
            self.options.action_last()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "edge" and self.is_mounted:
            line = self.query_one(Input)
            there = len(line.value) if parameters == (1,) else 0
            return not line.has_focus or line.cursor_position == there
        return super().check_action(action, parameters)
