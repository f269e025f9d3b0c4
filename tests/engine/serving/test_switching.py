"""Switching models under traffic: who is served by which."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from engine.api.client import ChatMessage, LoadRequest
from engine.api.lifecycle import FinishReason
from engine.api.status import EnginePhase
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read, say, snapshot_when
from tests.support.scripted_loader import TIMEOUT, Loader, Turnstile


class TestSwitching:
    def test_what_runs_ends_and_what_comes_waits_for_the_new_model(
        self,
        host: EngineHost,
        loader: Loader,
        turnstile: Turnstile,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO", "engine.serving.host")
        loader.knobs = {"max_num_seqs": 1}
        host.load(LoadRequest("a"))
        runs, queued = ask(host, "1", max_tokens=20), ask(host, "2", max_tokens=20)
        turnstile.wait()
        error_of(ask(host, ""))  # It is read behind `queued`, which is on its way to the engine.
        host.load(LoadRequest("b"))
        held = ask(host, "3")
        error_of(ask(host, "4", name=held.request_id))  # The wish for b was told before this was.
        turnstile.let_one()
        turnstile.wait()
        assert host.status().phase is EnginePhase.DRAINING
        turnstile.open()
        assert read(runs)[0] == say("a", [1], 20)
        assert read(queued)[0] == say("a", [2], 20)
        assert read(held)[0] == say("b", [3], 5)
        told = [r.getMessage() for r in caplog.records if r.name == "engine.serving.host"]
        assert told == ["2 requests end before b is loaded"]
        assert loader.closed == ["a"]
        assert host.status().model == "b"

    def test_one_that_was_being_encoded_goes_to_the_old_model(
        self, host: EngineHost, loader: Loader
    ) -> None:
        """The engine is idle, but a prompt is on its way: its ids are of the old vocabulary."""
        host.load(LoadRequest("a"))
        read(ask(host))
        entered, gate = threading.Event(), threading.Event()

        def slow(messages: Sequence[ChatMessage]) -> None:
            entered.set()
            assert gate.wait(TIMEOUT)

        loader.codecs["a"].before_encode = slow
        old = ask(host, "7")
        assert entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        new = ask(host, "8")
        assert not new.wait(0.05)  # the engine has time to switch too early
        assert loader.calls == ["a"]
        gate.set()
        assert read(old)[0] == say("a", [7], 5)
        assert read(new)[0] == say("b", [8], 5)

    @pytest.mark.parametrize("knob", ["paused", "draining"])
    def test_a_halted_engine_is_switched_too(self, host: EngineHost, knob: str) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({knob: True}, "me")
        waits = ask(host, "1")
        host.load(LoadRequest("b"))
        assert read(waits)[0] == say("a", [1], 5)
        assert read(ask(host, "2"))[0] == say("b", [2], 5)

    def test_back_and_forth_under_traffic(self, host: EngineHost, loader: Loader) -> None:
        streams = []
        for i in range(40):
            if i % 4 == 0:
                host.load(LoadRequest("ab"[i // 4 % 2]))
            streams.append(ask(host, f"{i} 1", max_tokens=1 + i % 7))
        for i, stream in enumerate(streams):
            text, finish = read(stream)
            assert finish.reason is FinishReason.LENGTH
            assert text in (say(name, [i, 1], 1 + i % 7) for name in "ab")
        assert read(ask(host, "5"))[0] == say("b", [5], 5)

    def test_the_records_of_the_last_steps_stay_until_another_model_is_there(
        self, host: EngineHost, loader: Loader
    ) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        loader.gates["b"] = threading.Event()
        host.load(LoadRequest("b"))
        assert loader.entered.wait(TIMEOUT)
        records = host.step_records(0)
        assert [record.step for record in records] == list(range(1, len(records) + 1))
        assert sum(record.output_tokens for record in records) == 5
        assert host.snapshot() is None
        loader.gates["b"].set()
        snapshot_when(host, lambda snapshot: snapshot.model.name == "b")
        assert host.step_records(0) == ()
