from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_serving import HttpServing, http_serving


@pytest.fixture
def serving() -> Iterator[HttpServing]:
    """A gateway of its own: what it counts begins at 0."""
    with http_serving() as one:
        yield one
        one.check_idle()
