"""The native kernels: whether this installation has them, and what this processor runs of them."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from types import ModuleType

from engine.api.errors import InvalidConfigError

VARIABLE = "BATCHDECK_KERNELS"
LEVELS = ("amx", "avx512", "avx2")
OFF = "off"

_MODULE = f"{__name__}._native"


def kernels() -> ModuleType | None:
    """The compiled module, set to the level in force and to a thread for each usable core.

    The level is the processor's best, or the one that the environment names.

    Returns:
        None where there are none; `why_not` says why.

    Raises:
        InvalidConfigError: the environment names what is no level, or none of this processor's.
    """
    return _load()[0]


def why_not() -> str:
    """Why there are no kernels, and what to do where something can be done: a clause.

    Empty if there are kernels.

    Raises:
        InvalidConfigError: as `kernels`.
    """
    return _load()[1]


def check() -> None:
    """Refuse now what the environment names and cannot be had, before anything slow is loaded.

    Raises:
        InvalidConfigError: as `kernels`.
    """
    if os.environ.get(VARIABLE):
        _load()  # 3 ms, and no thread is started


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
    """Cores that this process may use, and no more than OpenMP's limit, which is torch's too."""
    cores = len(os.sched_getaffinity(0))
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) > 0 else cores


def _left_out() -> str:
    """What the build said when it left the extension out."""
    for folder in __path__:
        try:
            return (Path(folder) / "left_out.txt").read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return "they have not been built here; install batchdeck again"
