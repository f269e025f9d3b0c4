"""Dialog: a small screen over all others that asks for one thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from app.screens.bound import key_of

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """What all dialogs have in common; `deck.tcss` has their frame. The result is None if nothing
    was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", tooltip="Close the dialog", id="dialog.cancel")
    ]

    @classmethod
    def kinds(cls) -> Iterator[type[Dialog[Any]]]:
        """This and all that are made of it."""
        yield cls
        for kind in cls.__subclasses__():
            yield from kind.kinds()

    def key_of(self, action: str) -> str:
        """The key that the dialog has for an action, as it is shown."""
        return key_of(action, self, self.app)

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        # Textual 8.2 would end its workers only after its widgets, which they may write to.
        self.workers.cancel_node(self)
        return super().dismiss(result)
