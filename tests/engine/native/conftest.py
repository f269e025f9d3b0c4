"""Every test here can run at every level of instructions that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.native import EACH_LEVEL, at_level

# Nothing is skipped here: a test that needs the kernels asks for them itself, and others run.


@pytest.fixture(params=[one for one in EACH_LEVEL if one.id != "avxvnni"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Levels whose kernels differ."""
    with at_level(request.param):
        yield request.param


@pytest.fixture(params=EACH_LEVEL)
def coded_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Levels whose products of codes differ: one has all else from AVX2."""
    with at_level(request.param):
        yield request.param
