"""PickPreset: a dialog for a preset."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from app.screens.dialogs.pick_named import PickNamed


class PickPreset(PickNamed):
    """Asks for a preset, and what to do with it."""

    TITLE = "Presets · Enter applies"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "act('rename')", "Rename", tooltip="Rename the preset", id="presets.rename"),
        Binding("d", "act('delete')", "Delete", tooltip="Delete the preset", id="presets.delete"),
        Binding(
            "n",
            "act('begin')",
            "New chats",
            tooltip="New chats begin with it, or no longer",
            id="presets.begin",
        ),
    ]
