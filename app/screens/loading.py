"""Loading: the part of the application that has the user choose models, and give up loading one."""

from __future__ import annotations

from textual import on
from textual.app import App

from app.screens.deck.speaking import Speaking
from app.screens.dialogs.load_model import LoadModel
from app.screens.model_switch import ModelSwitch
from engine.api.errors import EngineError


class Loading(App[int]):
    """What keys and palette do about models.

    Attributes:
        models: which one is wanted, and which was there before.
    """

    models: ModelSwitch

    @on(Speaking.ModelWanted)
    def load_named(self, event: Speaking.ModelWanted) -> None:
        """Load a model that was named, unless something speaks against it."""
        if refusal := self.models.refusal(event.name):
            self.notify(refusal, severity="warning", timeout=10)
        else:
            self.models.to(event.name)

    def action_load_model(self) -> None:
        """Choose another model."""
        try:
            entries = self.models.entries()
        except EngineError as error:
            self.notify(error.message, severity="error")
            entries = []

        def switch(model: str | None) -> None:
            if model is not None:
                self.models.to(model)

        self.push_screen(LoadModel(entries, self.models.refusal), switch)

    def action_stop_loading(self) -> None:
        """Give up loading a model; the one before comes back."""
        if back := self.models.stop():
            self.notify(f"Loading is given up; {back} comes back.")
        else:
            self.notify("There is no loading to give up.", severity="warning")
