"""The native kernels, for tests that have nothing to test without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from engine import native
from engine.native import kernels

# How the marker `needs` names what a machine may lack, and how the end of a run does.
NEEDS = {
    "amx": "AMX",
    "avx512": "AVX-512",
    "avxvnni": "AVX-VNNI",
    "avx2": "AVX2",
    "gpu": "a GPU",
}
WANT = "for want of "


def levels_here() -> list[str]:
    """The levels that this processor has, best first, up to the one that `BATCHDECK_KERNELS`
    names: so a machine with fewer is had on one with more.
    """
    module = kernels()
    if module is None:
        return []
    levels: list[str] = module.levels()
    return levels[levels.index(module.level()) :]


LEVELS = levels_here()
# Every level as a parameter, for a test that is left out where the processor lacks it.
EACH_LEVEL = [
    pytest.param(level, id=level, marks=pytest.mark.needs(level)) for level in native.LEVELS
]


def why_skipped() -> str:
    """Why there are no kernels: for want of instructions, or because none were built."""
    reason = native.why_not()
    return WANT + NEEDS["avx2"] if "lacks AVX2" in reason else f"no native kernels here: {reason}"


@contextmanager
def at_level(name: str) -> Iterator[None]:
    """Have the kernels of another level meanwhile."""
    module = kernels()
    assert module is not None
    before = module.level()
    module.choose_level(name)
    try:
        yield
    finally:
        module.choose_level(before)


def kernels_or_skip() -> ModuleType:
    """The kernels; the module that asks is skipped where there are none."""
    module = kernels()
    if module is None:
        pytest.skip(why_skipped(), allow_module_level=True)
    return module
