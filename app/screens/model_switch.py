"""ModelSwitch: has the engine load another model for the user, and give up doing so."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from engine.api.client import EngineClient, LoadRequest
from engine.api.errors import EngineError, ModelError
from engine.api.status import EnginePhase
from engine.model.registry import BUILTIN, Availability, ModelEntry, Registry

log = logging.getLogger(__name__)


class ModelSwitch:
    """Knows which model is wanted, and which one was there before.

    Args:
        request: the first wish.
    """

    def __init__(self, client: EngineClient, request: LoadRequest) -> None:
        self._client = client
        self._wanted = request
        # What `stop` goes back to: the model that was last there, or else the one of the package.
        self._before = replace(request, model=BUILTIN)

    def begin(self) -> None:
        self._client.load(self._wanted)

    @property
    def is_loading(self) -> bool:
        return self._client.status().phase in (EnginePhase.LOADING, EnginePhase.DRAINING)

    def entries(self) -> list[ModelEntry]:
        """The models of the registry.

        Raises:
            EngineError: it cannot be read.
        """
        return list(self._registry().entries.values())

    def refusal(self, model: str) -> str:
        """Why a model cannot be loaded, as far as that is known without the network; empty if
        nothing speaks against it."""
        try:
            entry = self._registry().find(os.path.expanduser(model))
            if entry.availability() is Availability.MISSING:
                raise ModelError(f"{entry.source} does not hold a model with its weights")
        except EngineError as error:
            return error.message
        return ""

    def to(self, model: str) -> None:
        """Have the engine drain, unload its model and load another. The screen shows its progress,
        and a failure."""
        status = self._client.status()
        if status.phase is EnginePhase.READY and not status.detail:
            # With a detail, the wish failed and the model before is back.
            self._before = self._wanted
        log.info("switching from %s to %s", self._wanted.model, model)
        self._wanted = replace(self._wanted, model=os.path.expanduser(model))
        self._client.load(self._wanted)

    def stop(self) -> str:
        """Give up loading; returns the name of the model that is loaded instead, which is empty if
        nothing was being loaded."""
        if not self.is_loading or self._wanted == self._before:
            return ""
        log.info("loading %s is given up for %s", self._wanted.model, self._before.model)
        self._wanted = self._before
        self._client.load(self._wanted)
        return self._wanted.model

    def _registry(self) -> Registry:
        return Registry.read(self._wanted.models_file)
