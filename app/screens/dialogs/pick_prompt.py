"""PickPrompt: a dialog for a saved prompt."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from app.screens.dialogs.pick_named import PickNamed


class PickPrompt(PickNamed):
    """Asks for a saved prompt, and what to do with it."""

    TITLE = "Saved prompts · Enter inserts"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "act('edit')", "Edit", tooltip="Edit the saved prompt", id="prompts.edit"),
        Binding(
            "d", "act('delete')", "Delete", tooltip="Delete the saved prompt", id="prompts.delete"
        ),
    ]
