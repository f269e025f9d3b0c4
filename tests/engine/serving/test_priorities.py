"""Priorities that change while requests wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from engine.api.client import ChatMessage, LoadRequest
from engine.api.errors import InvalidRequestError
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import Snapshot
from engine.api.waiting import in_words
from engine.serving.host import EngineHost
from tests.support.asking import ask, read, snapshot_when
from tests.support.scripted_loader import TIMEOUT, Loader, WordCodec


class TestPriorities:
    @pytest.mark.parametrize("value", [1_000_001, -1_000_001, True, 1.0, "3", None])
    def test_one_out_of_bounds_is_the_caller_s_error(self, host: EngineHost, value: object) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            host.set_priority("nobody", value)  # type: ignore[arg-type]
        assert caught.value.param == "priority"
        assert caught.value.message == (
            f"priority is {value!r}; it must be an integer from -1000000 to 1000000"
        )

    def test_one_that_waits_for_a_model(self, host: EngineHost, loader: Loader) -> None:
        loader.knobs = {"paused": True}
        streams = [ask(host, str(i), name=name) for i, name in enumerate("abc")]
        host.set_priority("c", 1_000_000)
        host.set_priority("a", -1_000_000)
        host.load(LoadRequest("m"))
        waiting(host, ("c", 1_000_000), ("b", 0), ("a", -1_000_000))
        host.set_knobs({"paused": False}, "me")
        assert all(read(stream)[1].reason is FinishReason.LENGTH for stream in streams)

    def test_it_does_not_overtake_its_submission(self, host: EngineHost, loader: Loader) -> None:
        """The text thread still encodes the request when its priority changes."""
        encodes, may_go_on = threading.Event(), threading.Event()

        def before_encode(messages: Sequence[ChatMessage]) -> None:
            if messages[-1].content == "2":
                encodes.set()
                assert may_go_on.wait(TIMEOUT)

        loader.knobs = {"paused": True}
        loader.codecs["m"] = WordCodec("m", before_encode)
        host.load(LoadRequest("m"))
        ask(host, "1", name="first")
        ask(host, "2", name="second")
        assert encodes.wait(TIMEOUT)
        host.set_priority("second", 2)
        may_go_on.set()
        waiting(host, ("second", 2), ("first", 0))

    def test_a_paused_engine_shows_it(self, host: EngineHost, loader: Loader) -> None:
        loader.knobs = {"paused": True}
        host.load(LoadRequest("m"))
        for name in "ab":
            ask(host, "1", name=name)
        waiting(host, ("a", 0), ("b", 0))
        host.set_priority("b", 1)
        snapshot = waiting(host, ("b", 1), ("a", 0))
        assert [in_words(view.wait) for view in snapshot.requests] == ["paused", "behind 1: paused"]

    def test_unknown_and_ended_ones(self, host: EngineHost) -> None:
        host.set_priority("nobody", 1)
        host.load(LoadRequest("a"))
        read(ask(host, name="x"))
        host.set_priority("x", 1)
        host.set_priority("nobody", 1)
        assert read(ask(host))[1].reason is FinishReason.LENGTH


def waiting(host: EngineHost, *expected: tuple[str, int]) -> Snapshot:
    """The first snapshot in which those wait, in this order, with these priorities."""

    def names(found: Snapshot) -> tuple[tuple[str, int], ...]:
        return tuple((view.request_id, view.priority) for view in found.requests)

    return snapshot_when(host, lambda found: names(found) == expected)
