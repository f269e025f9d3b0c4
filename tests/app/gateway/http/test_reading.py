"""Requests are read without the cycle collector, which then is as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pydantic import model_validator

from app.gateway.faults import Fault
from app.gateway.http.protocol.payload import Payload, read

SEEN: list[bool] = []


class Asked(Payload):
    number: int = 0

    @model_validator(mode="after")
    def _look(self) -> Asked:
        SEEN.append(gc.isenabled())
        return self


@pytest.fixture(params=[True, False], ids=["collects", "does not"])
def collects(request: pytest.FixtureRequest) -> Iterator[bool]:
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()


def test_nothing_is_collected_while_it_is_read(collects: bool) -> None:
    SEEN.clear()
    assert read(Asked, b'{"number": 1}').number == 1
    assert SEEN == [False]
    assert gc.isenabled() is collects
    with pytest.raises(Fault):
        read(Asked, b'{"number": "x"}')
    assert gc.isenabled() is collects
