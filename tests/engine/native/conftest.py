"""Every test here can run at every level of instructions that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.native import kernels
from tests.support.native import EACH_LEVEL

# Nothing is skipped here: a test that needs the kernels asks for them itself, and others run.
native = kernels()


@pytest.fixture(params=[one for one in EACH_LEVEL if one.id != "avxvnni"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Levels whose kernels differ."""
    yield from chosen(request.param)


@pytest.fixture(params=EACH_LEVEL)
def coded_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Levels whose products of codes differ: one has all else from AVX2."""
    yield from chosen(request.param)


def chosen(name: str) -> Iterator[str]:
    assert native is not None
    before = native.level()
    native.choose_level(name)
    yield name
    native.choose_level(before)
