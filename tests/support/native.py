"""The native kernels, for tests that have nothing to test without them."""

from __future__ import annotations

from types import ModuleType

import pytest

from engine.native import kernels


def kernels_or_skip() -> ModuleType:
    """The kernels; the module that asks is skipped where there are none."""
    module = kernels()
    if module is None:
        pytest.skip("no native kernels here", allow_module_level=True)
    return module
