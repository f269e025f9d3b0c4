"""Counting: the tokens of a text that is not asked yet."""

from __future__ import annotations

import pytest

from engine.api.client import LoadRequest
from engine.api.errors import UnavailableError
from engine.serving.host import EngineHost
from tests.support.asking import ask, read
from tests.support.scripted_loader import TIMEOUT


def test_the_model_that_is_served_counts(host: EngineHost) -> None:
    with pytest.raises(UnavailableError, match="no model is loaded"):
        host.count_tokens("1 2 3").result(TIMEOUT)
    host.load(LoadRequest("a"))
    read(ask(host))
    assert host.count_tokens("1 2 3").result(TIMEOUT) == 3
