"""Every test here can run at every level of instructions that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.native import kernels

# Nothing is skipped here: a test that needs the kernels asks for them itself, and others run.
native = kernels()


@pytest.fixture(params=native.levels() if native else [])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    assert native is not None
    before = native.level()
    native.choose_level(request.param)
    yield request.param
    native.choose_level(before)
