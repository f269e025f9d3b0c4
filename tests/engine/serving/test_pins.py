"""Pins: prefixes that stay in the cache, over switches of models too."""

from __future__ import annotations

import pytest

from engine.api.block_map import PinView
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.serving.host import EngineHost
from tests.support.asking import ask, read, snapshot_when


class TestPins:
    SYSTEM = (ChatMessage("system", "100 101 102 103 104 105 106 107 108"),)  # two blocks and a bit

    def cached(self, host: EngineHost) -> list[int]:
        """Cached tokens of two chats that begin alike, with the pool filled between them."""
        found = []
        for user in ("1", "2"):
            chat = Submission(messages=(*self.SYSTEM, ChatMessage("user", user)))
            found.append(read(host.submit(chat))[1].usage.cached_tokens)
            for i in range(8):
                others = range(200 + 50 * i, 250 + 50 * i)
                read(ask(host, " ".join(map(str, others)), max_tokens=10))
        return found

    def test_without_one_a_prefix_is_evicted(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        assert self.cached(host) == [0, 0]

    @pytest.mark.parametrize("early", [True, False])
    def test_it_holds_before_and_after_a_model_is_there_and_for_the_next(
        self, host: EngineHost, early: bool
    ) -> None:
        if early:
            host.pin("system", self.SYSTEM)
        host.load(LoadRequest("a"))
        if not early:
            read(ask(host))
            host.pin("system", self.SYSTEM)
        for model in ("a", "b"):
            host.load(LoadRequest(model))
            assert self.cached(host) == [0, 8]
            snapshot = snapshot_when(host, lambda found: bool(found.pins))
            assert snapshot.pins == (PinView("system", tokens=9, blocks=2, computed=2),)

    def test_one_let_go_is_gone_for_the_next_model_too(self, host: EngineHost) -> None:
        host.pin("system", self.SYSTEM)
        host.load(LoadRequest("a"))
        snapshot_when(host, lambda found: bool(found.pins))
        host.unpin("system")
        snapshot_when(host, lambda found: not found.pins)
        host.load(LoadRequest("b"))
        assert self.cached(host) == [0, 0]
        assert snapshot_when(host, lambda found: True).pins == ()

    def test_one_let_go_without_a_model_never_holds(self, host: EngineHost) -> None:
        host.pin("system", self.SYSTEM)
        host.unpin("system")
        host.load(LoadRequest("a"))
        assert self.cached(host) == [0, 0]

    def test_one_that_does_not_fit_says_so(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        host.pin("long", (ChatMessage("system", "1 " * 200),))
        (pin,) = snapshot_when(host, lambda found: bool(found.pins)).pins
        assert (pin.name, pin.tokens, pin.blocks) == ("long", 200, 0)
        assert "would take 50 blocks; the pool has 48 beyond" in pin.error
