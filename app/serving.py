"""serving: an engine in this process with its model loaded, for as long as it is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from engine.client import EngineClient, LoadRequest
from engine.host import EngineHost
from engine.loading import LoadedModel, Progress
from engine.snapshot import EnginePhase, EngineStatus

POLL_SECONDS = 0.02
_CLEAR_LINE = "\r\x1b[K"


class ModelLoadError(Exception):
    """The model could not be loaded; the message says which and why."""


def load_model(request: LoadRequest, progress: Progress) -> LoadedModel:
    """The loader, imported when it is called: with torch that takes seconds."""
    # Threads of OpenMP that spin while they wait take the cores from those that compute, and from
    # the screen, once anything else runs: on two busy cores the demo took 21 to 47 s spinning, and
    # 3 s like this. It is read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from engine.model import loader

    return loader.load_model(request, progress)


@contextmanager
def serving(request: LoadRequest, terminal: TextIO | None = None) -> Iterator[EngineClient]:
    """An engine that serves a model, until the end of the context; what runs then is aborted.

    Args:
        terminal: where to show how far loading is, if anywhere.

    Raises:
        ModelLoadError: the model could not be loaded.
    """
    host = EngineHost(load_model)
    try:
        host.load(request)
        try:
            while (status := host.status()).phase is not EnginePhase.READY:
                if status.phase is EnginePhase.FAILED:
                    raise ModelLoadError(status.detail)
                _show(terminal, _progress(status))
                time.sleep(POLL_SECONDS)
        finally:
            _show(terminal, "")
        yield host
    finally:
        host.shutdown()


def _show(terminal: TextIO | None, text: str) -> None:
    if terminal is not None:
        terminal.write(f"{_CLEAR_LINE}{text}\r")  # what is logged meanwhile goes over it
        terminal.flush()


def _progress(status: EngineStatus) -> str:
    text = f"{status.model}: {status.detail}"
    if status.total_bytes:
        text += f", {status.loaded_bytes / status.total_bytes:.0%} of {status.total_bytes:,} bytes"
    return text
