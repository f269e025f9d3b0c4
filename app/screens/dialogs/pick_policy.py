"""PickPolicy: a dialog for a batching policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from app.screens.dialogs.dialog import Dialog


class PickPolicy(Dialog[str]):
    """Asks for a batching policy.

    Args:
        choices: the name of each policy and what it does.
        current: the policy that is asked for now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "dismiss(None)", "Close", show=False, id="policy.close")
    ]

    def __init__(self, choices: Sequence[tuple[str, str]], current: str) -> None:
        super().__init__()
        self._choices = choices
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Policy · Enter chooses; what runs goes on under the new one")
            yield OptionList(*(Option(self._line(*choice), choice[0]) for choice in self._choices))

    def on_mount(self) -> None:
        names = [name for name, _ in self._choices]
        options = self.query_one(OptionList)
        options.highlighted = names.index(self._current) if self._current in names else 0
        options.focus()

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def _line(self, name: str, does: str) -> Content:
        now = " · now" if name == self._current else ""
        return Content.assemble((name, "bold"), (f"{now}\n  {does}", "$text-muted"))
