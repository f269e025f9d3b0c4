from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.app.conftest import own_process as own_process
from tests.engine.text.conftest import byte_level as byte_level
from tests.support.http_serving import HttpServing, http_serving


@pytest.fixture(scope="package")
def serving() -> Iterator[HttpServing]:
    with http_serving() as one:
        yield one
        one.check_idle()
