"""ModelSwitch: has the engine load another model for the user, or cancel that."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace

from app.system.machine import why_not_quantized
from engine.api.client import EngineClient, LoadRequest
from engine.api.config import QUANTIZATIONS
from engine.api.errors import EngineError, ModelError
from engine.api.status import EnginePhase, ModelCard
from engine.model.catalog.registry import BUILTIN, Availability, ModelEntry, Registry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelWish:
    """Which model is wanted, and how wide its weights are to be.

    Attributes:
        model: a name, a folder, a file or a hub id; empty keeps the loaded one.
        quantize: of `QUANTIZATIONS`; None uses the width with which the program was started, or
            else the registry's.
    """

    model: str
    quantize: str | None = None

    @staticmethod
    def read(text: str) -> ModelWish:
        """The wish that a line states, such as `qwen3-0.6b int8`. Either part may be missing."""
        *before, last = text.rsplit(maxsplit=1) or [""]
        if last in QUANTIZATIONS:
            return ModelWish("".join(before).strip(), last)
        return ModelWish(text.strip())


class ModelSwitch:
    """Knows which model is wanted, and which one was loaded before.

    Args:
        request: the first wish.
    """

    def __init__(self, client: EngineClient, request: LoadRequest) -> None:
        self._client = client
        self._wanted = request
        # The model to which `stop` returns: the last loaded one, or else the built-in one.
        self._before = replace(request, model=BUILTIN)
        self._quantize = request.quantize  # the width for wishes that name none

    def start(self) -> None:
        self._client.load(self._wanted)

    @property
    def is_loading(self) -> bool:
        return self._client.status().phase in (EnginePhase.LOADING, EnginePhase.DRAINING)

    @property
    def card(self) -> ModelCard | None:
        """The loaded model; None if there is none."""
        snapshot = self._client.snapshot()
        return snapshot.model if snapshot is not None else None

    def entries(self) -> list[ModelEntry]:
        """The models of the registry.

        Raises:
            EngineError: it cannot be read.
        """
        return list(self._registry().entries.values())

    def refusal(self, wish: ModelWish) -> str:
        """Why a model cannot be loaded, as far as that is known without the network; empty if
        nothing speaks against it."""
        try:
            if wish.model:
                entry = self._registry().find(os.path.expanduser(wish.model))
                if entry.availability() is Availability.MISSING:
                    raise ModelError(f"{entry.source} does not hold a model with its weights")
            card, width = self.card, wish.quantize or self._quantize or "none"
            # The next model is loaded to the same device as this one.
            if width != "none" and card is not None:
                return why_not_quantized(card.device)
        except EngineError as error:
            return error.message
        return ""

    def to(self, wish: ModelWish) -> None:
        """Make the engine drain, unload its model and load the wanted one. The screen shows its
        progress, and a failure."""
        status = self._client.status()
        is_ready = status.phase is EnginePhase.READY
        # With a detail, the last wish failed and the model before is back.
        there = self._before if is_ready and status.detail else self._wanted
        if is_ready:
            self._before = there
        wanted = replace(
            there,
            model=os.path.expanduser(wish.model) or there.model,
            quantize=wish.quantize or self._quantize,
        )
        log.info("switching from %s to %s", there.model, wanted.model)
        self._wanted = wanted
        self._client.load(wanted)

    def stop(self) -> str:
        """Cancel the load; returns the name of the model that is loaded instead, which is empty if
        nothing was being loaded."""
        if not self.is_loading or self._wanted == self._before:
            return ""
        log.info("loading %s is cancelled for %s", self._wanted.model, self._before.model)
        self._wanted = self._before
        self._client.load(self._wanted)
        return self._wanted.model

    def _registry(self) -> Registry:
        return Registry.read(self._wanted.models_file)
