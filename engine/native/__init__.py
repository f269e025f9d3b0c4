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
    """The compiled module, set to the level in force and to the threads that it may use.

    The level is the best that the processor has, or the one that the environment names. There is a
    thread for each core that this process may use, or fewer if `OMP_NUM_THREADS` says so.

    Returns:
        the module, or None if there are no kernels; `why_not` then says why.

    Raises:
        InvalidConfigError: the environment names something that is no level, or a level that this
            processor lacks.
    """
    return _load()[0]


def why_not() -> str:
    """A clause that says why there are no kernels, and what to do if something can be done.

    It is empty if there are kernels.

    Raises:
        InvalidConfigError: as `kernels`.
    """
    return _load()[1]


def check() -> None:
    """Refuse a level that the environment names and that cannot be had, before a slow loading.

    Raises:
        InvalidConfigError: as `kernels`.
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
    """Cores that this process may use, up to the limit of OpenMP, which torch obeys as well."""
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
