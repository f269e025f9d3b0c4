"""serving: runs an engine in this process, with a model loaded, for as long as it is needed."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from app.process import heap
from app.system.engine_crash import check_engine
from engine.api.client import EngineClient, LoadRequest
from engine.api.errors import EngineError
from engine.api.status import EnginePhase, EngineStatus
from engine.model.catalog.registry import Registry
from engine.serving.host import EngineHost
from engine.serving.loading import LoadedModel, Progress
from engine.text.pool import encoding
from widgets.harmless import harmless

POLL_SECONDS = 0.02
_CLEAR_LINE = "\r\x1b[K"


def preload_torch() -> None:
    """Load torch's libraries before they are imported; does nothing if they are not found.

    Running their initializers takes 0.15 s, and much longer for those of CUDA. An import holds the
    interpreter's lock meanwhile, as `ctypes.CDLL` does, so that the screen freezes. A call of a
    foreign function holds no lock, and `dlopen` is one. The import then finds them loaded.
    """
    if sys.platform != "linux" or "torch" in sys.modules:
        return
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    library = Path(spec.origin).with_name("lib") / "libtorch.so"
    # If it fails, the import says why.
    with suppress(AttributeError, OSError):
        dlopen = ctypes.CDLL(None).dlopen
        dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
        dlopen(os.fsencode(library), os.RTLD_NOW)


class ModelLoadError(Exception):
    """The model could not be loaded; the message says which and why."""


def load_model(request: LoadRequest, progress: Progress) -> LoadedModel:
    """Load a model. The loader is imported only now, because with torch that takes 4 s. The
    process that encodes starts meanwhile.

    An unknown model name is refused before that.

    Raises:
        InvalidConfigError, ModelError: see `engine.serving.loading.ModelLoader`.
    """
    entry = Registry.read(request.models_file).find(request.model)
    # By default, threads of OpenMP spin while they wait. Once anything else runs, they take the
    # cores from the computing threads, and from the screen: on two busy cores the demo took 21 to
    # 47 s with spinning threads, and 3 s without. Torch reads the variable at import.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    # Only once: a model whose loading failed is garbage by the next time, and must not be frozen.
    is_there = "engine.model.loading.loader" in sys.modules
    with encoding() as encoder:
        with nullcontext() if is_there else heap.building():
            preload_torch()
            from engine.model.loading import loader

        model = loader.load_entry(entry, request, progress, encoder)
    heap.settle()

    def close() -> None:
        heap.unsettle()  # Otherwise cycles would hold the model, and its memory, for a long time.
        model.close()

    return replace(model, close=close)


def check_model(request: LoadRequest) -> None:
    """Refuse a model name that cannot exist: neither in the registry, nor a folder or a file, nor
    in the form of the hub's names.

    Raises:
        ModelLoadError: there is no such model, or the registry cannot be read.
    """
    try:
        Registry.read(request.models_file).find(request.model)
    except EngineError as error:
        raise ModelLoadError(f"could not load {request.model}: {error.message}") from None


@contextmanager
def loading(request: LoadRequest) -> Iterator[EngineClient]:
    """An engine that begins to load a model, and serves it until the end of the context. Requests
    in flight are then aborted.

    Raises:
        EngineCrashError: the engine crashed.
    """
    host = EngineHost(load_model)
    try:
        host.load(request)
        yield host
        check_engine(host)
    finally:
        host.shutdown()


def wait_until_loaded(client: EngineClient, terminal: TextIO | None = None) -> None:
    """Wait until an engine has loaded its model.

    Args:
        terminal: shows the progress of loading; None shows nothing.

    Raises:
        ModelLoadError: the model could not be loaded.
        EngineCrashError: the engine crashed.
    """
    try:
        while (status := client.status()).phase is not EnginePhase.READY:
            check_engine(client)
            if status.phase is EnginePhase.FAILED:
                raise ModelLoadError(status.detail)
            _write_status(terminal, _progress(status))
            time.sleep(POLL_SECONDS)
    finally:
        _write_status(terminal, "")


@contextmanager
def serving(request: LoadRequest, terminal: TextIO | None = None) -> Iterator[EngineClient]:
    """As `loading`, once the model is loaded; arguments and errors also include those of
    `wait_until_loaded`."""
    with loading(request) as client:
        wait_until_loaded(client, terminal)
        yield client


def _write_status(terminal: TextIO | None, text: str) -> None:
    if terminal is not None:
        # A line that is logged meanwhile overwrites this one.
        terminal.write(f"{_CLEAR_LINE}{harmless(text)}\r")
        terminal.flush()


def _progress(status: EngineStatus) -> str:
    text = f"{status.model}: {status.detail}"
    if status.total_bytes:
        text += f", {status.loaded_bytes / status.total_bytes:.0%} of {status.total_bytes:,} bytes"
    return text
