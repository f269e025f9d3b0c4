"""The native kernels: whether this installation has them, and what this processor runs of them."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from types import ModuleType

from engine.api.errors import InvalidConfigError

VARIABLE = "BATCHDECK_KERNELS"
LEVELS = ("amx", "avx512", "avxvnni", "avx2")
OFF = "off"

_MODULE = f"{__name__}._native"


def kernels() -> ModuleType | None:
    """Load the compiled module, set to the level and the number of threads in force.

    The level is the best one of the processor, or the one named by the environment. There is a
    thread for each core available to this process, or fewer if `OMP_NUM_THREADS` says so.

    Returns:
        the module, or None if there are no kernels; `why_not` then says why.

    Raises:
        InvalidConfigError: the environment names an unknown level, or one that this processor
            lacks.
    """
    return _load()[0]


def trim_heap() -> None:
    """Return freed memory to the system, if there are kernels: the allocator would keep it."""
    native = kernels()
    if native is not None:
        native.trim_heap()


def why_not() -> str:
    """Why there are no kernels, and the remedy if there is one, as a clause.

    It is empty if there are kernels.

    Raises:
        InvalidConfigError: see `kernels`.
    """
    return _load()[1]


def check() -> None:
    """Refuse an unavailable level in the environment, before a slow load.

    Raises:
        InvalidConfigError: see `kernels`.
    """
    if os.environ.get(VARIABLE):
        _load()  # This takes 3 ms and starts no thread.


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", OFF, *LEVELS):
        allowed = ", ".join((*LEVELS, OFF))
        raise InvalidConfigError(f"{VARIABLE} is {wanted!r}; allowed are {allowed}", VARIABLE)
    if wanted == OFF:
        return None, f"{VARIABLE}={OFF} switches them off"
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == _MODULE
        return None, _left_out() if is_absent else f"the extension does not load: {error}"
    levels: list[str] = module.levels()
    if not levels:
        return None, "this processor lacks AVX2"
    if wanted and wanted not in levels:
        allowed = ", ".join((*levels, OFF))
        raise InvalidConfigError(
            f"{VARIABLE} is {wanted!r}; this processor allows {allowed}", VARIABLE
        )
    module.choose_level(wanted or levels[0])
    module.set_threads(_threads())
    return module, ""


def _threads() -> int:
    """Cores available to this process, up to OpenMP's limit, which torch obeys as well."""
    cores = len(os.sched_getaffinity(0))
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) > 0 else cores


def _left_out() -> str:
    """The message of the build when it omitted the extension."""
    for folder in __path__:
        try:
            return (Path(folder) / "left_out.txt").read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return "they have not been built here; install batchdeck again"
