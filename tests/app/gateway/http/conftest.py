from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_serving import HttpServing, http_serving


@pytest.fixture
def serving() -> Iterator[HttpServing]:
    with http_serving() as one:
        yield one
        one.check_idle()
