"""PickPolicy: a dialog for a batching policy."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from app.screens.dialogs.pick_named import PickNamed


class PickPolicy(PickNamed):
    """Asks for a batching policy."""

    TITLE = "Policy · Enter chooses; what runs goes on under the new one"
    MOST = 200  # a sentence, which may wrap
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "p",
            "dismiss(None)",
            "Close",
            tooltip="Close the list of policies",
            show=False,
            id="policy.close",
        )
    ]
