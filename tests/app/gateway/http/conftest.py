from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_serving import HttpServing, http_serving


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServing]:
    """One gateway for the tests of a file."""
    with http_serving() as one:
        yield one


@pytest.fixture
def serving(shared: HttpServing) -> Iterator[HttpServing]:
    """A gateway with nothing running, whose engine has been asked nothing."""
    shared.forget()
    yield shared
    shared.check_idle()
