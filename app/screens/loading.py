"""Loading: the part of the application that has the user choose models, and give up loading one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual import on
from textual.app import App, SystemCommand

from app.screens.deck.deck import Deck
from app.screens.dialogs.load_model import LoadModel
from app.screens.model_switch import ModelSwitch
from app.screens.model_wish import ModelWish
from engine.api.config import QUANTIZATIONS
from engine.api.errors import EngineError
from widgets.quantization import in_full

_DOES = "Loads the model again; what runs ends first"


class Loading(App[int]):
    """What keys and palette do about models.

    Attributes:
        models: which one is wanted, and which was there before.
    """

    models: ModelSwitch

    @on(Deck.ModelWanted)
    def load_named(self, event: Deck.ModelWanted) -> None:
        """Load a model that was named, unless something speaks against it."""
        self._load(event.wish)

    def _load(self, wish: ModelWish) -> None:
        if refusal := self.models.refusal(wish):
            self.notify(refusal, severity="warning", timeout=10)
        else:
            self.models.to(wish)

    def action_load_model(self) -> None:
        """Choose another model."""
        try:
            entries = self.models.entries()
        except EngineError as error:
            self.notify(error.message, severity="error")
            entries = []

        def switch(wish: ModelWish | None) -> None:
            if wish is not None:
                self.models.to(wish)

        self.push_screen(LoadModel(entries, self.models.refusal), switch)

    def quantizing(self) -> Iterator[SystemCommand]:
        """A command for each width that the weights of the model that is there can have."""
        card = None if self.models.is_loading else self.models.card
        for width in QUANTIZATIONS:
            wish = ModelWish("", width)
            if card is not None and card.quantize == width:
                now = in_full(card) or "weights as they are stored"
                does, run = f"Now: {now}", partial(self.notify, f"So it is: {now}.")
            else:
                refusal = self.models.refusal(wish)
                does = f"Not here: {refusal}" if refusal else _DOES
                run = partial(self._load, wish)
            title = f"Quantize weights: {width}" + (" (as stored)" if width == "none" else "")
            yield SystemCommand(title, does, run)

    def action_stop_loading(self) -> None:
        """Give up loading a model; the one before comes back."""
        if back := self.models.stop():
            self.notify(f"Loading is given up; {back} comes back.")
        else:
            self.notify("There is no loading to give up.", severity="warning")
