"""Every test here can run at every level of instructions that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.native import kernels

# Nothing is skipped here: a test that needs the kernels asks for them itself, and others run.
native = kernels()


ALL = native.levels() if native else []


@pytest.fixture(params=[one for one in ALL if one != "avxvnni"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Levels whose kernels differ."""
    yield from chosen(request.param)


@pytest.fixture(params=ALL)
def coded_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Levels whose products of codes differ: one has all else from AVX2."""
    yield from chosen(request.param)


def chosen(name: str) -> Iterator[str]:
    assert native is not None
    before = native.level()
    native.choose_level(name)
    yield name
    native.choose_level(before)
