"""LoadAttempt: one call of a loader, which reports progress and can be cancelled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from engine.api.client import LoadRequest
from engine.api.errors import EngineError, UnavailableError, cause_of
from engine.api.knobs import change_knobs
from engine.api.status import EnginePhase, EngineStatus
from engine.serving.loading import LoadedModel, ModelLoader
from engine.serving.lock import prompt_switches

log = logging.getLogger(__name__)


class LoadAttempt:
    """An attempt at loading a model.

    Args:
        request: what to load.
        say: publishes the progress.
        is_wanted: whether the model is still wanted; called at each report of progress.
    """

    def __init__(
        self,
        request: LoadRequest,
        say: Callable[[EngineStatus], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._request = request
        self._say = say
        self._is_wanted = is_wanted
        self._reporting = threading.Lock()
        self._is_over = False

    def run(self, loader: ModelLoader) -> LoadedModel:
        """Load the model, and set its knobs to the values in the request.

        Raises:
            EngineError: it cannot be loaded.
            LoadCancelledError: it is no longer wanted.
        """
        request = self._request
        self._progress("starting")
        try:
            with prompt_switches():
                model = loader(request, self._progress)
            # Imported here, because the first screen waits for imports and does not need this one.
            from engine.scheduling.policies import policy_names

            try:
                knobs = change_knobs(model.knobs, request.knobs, model.config, policy_names())
            except EngineError:
                model.close()
                raise
            notes = {k: v for k, v in model.knob_notes.items() if k not in request.knobs}
            return replace(model, knobs=knobs, knob_notes=notes)
        except (EngineError, LoadCancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of tokenizers or safetensors is not an Exception
            log.exception("the loader failed")
            raise UnavailableError(cause_of(error)) from error
        finally:
            with self._reporting:
                self._is_over = True

    def _progress(self, detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        # Any thread of the loader may report, even after the load has ended.
        with self._reporting:
            if self._is_over or not self._is_wanted():
                raise LoadCancelledError
            name = self._request.model
            self._say(EngineStatus(EnginePhase.LOADING, name, detail, loaded_bytes, total_bytes))


class LoadCancelledError(Exception):
    """The host stops, or another model is wanted, so that this load ends."""
