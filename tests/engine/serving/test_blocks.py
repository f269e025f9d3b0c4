"""One block of the pool, asked for from another thread."""

from __future__ import annotations

import time

from engine.api.block_map import BlockState, BlockView
from engine.api.client import LoadRequest
from engine.serving.host import EngineHost
from tests.support.asking import ask, read

DEADLINE = 10.0


def block(host: EngineHost, number: int) -> BlockView:
    """The block, once the engine has told of it."""
    end = time.monotonic() + DEADLINE
    while (view := host.block(number)) is None:
        assert time.monotonic() < end, "the engine told of no block"
    return view


def test_a_block_has_the_text_of_its_tokens(host: EngineHost) -> None:
    assert host.block(0) is None  # there is no model yet, and nothing is waited for
    host.load(LoadRequest("a"))
    read(ask(host, "100 101 102 103 104 105 106 107 108"))
    view = block(host, 0)
    assert view.state is BlockState.CACHED
    assert view.position == 0
    assert view.token_ids[:2] == (100, 101)
    assert "100" in view.text
    assert block(host, 7).token_ids == ()
    read(ask(host, "1 2 3"))
    host.load(LoadRequest("b"))
    read(ask(host, "200 201 202 203 204 205 206 207 208"))
    assert block(host, 0).token_ids[:2] == (200, 201)
