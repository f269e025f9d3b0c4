"""Aborts, of requests that wait, run, have ended or never were."""

from __future__ import annotations

from engine.api.client import LoadRequest
from engine.api.lifecycle import FinishReason
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read, say
from tests.support.scripted_loader import Turnstile


class TestAborting:
    def test_one_that_waits_for_a_model(self, host: EngineHost) -> None:
        stream = ask(host, name="x")
        host.abort("x")
        text, finish = read(stream)
        assert (text, finish.reason) == ("", FinishReason.ABORT)
        host.load(LoadRequest("a"))
        assert read(ask(host, name="x"))[1].reason is FinishReason.LENGTH

    def test_one_that_runs(self, host: EngineHost, turnstile: Turnstile) -> None:
        host.load(LoadRequest("a"))
        stream = ask(host, "1 2", name="x", max_tokens=40)
        for _ in range(3):
            turnstile.wait()
            turnstile.let_one()
        turnstile.wait()
        host.abort("x")
        host.abort("x")
        error_of(ask(host, ""))  # refused by the text thread, which had read the aborts by then
        turnstile.open()
        text, finish = read(stream)
        assert finish.reason is FinishReason.ABORT
        assert text == say("a", [1, 2], finish.usage.completion_tokens)
        assert finish.usage.completion_tokens == 4

    def test_one_that_runs_is_told_before_the_next_step(
        self, host: EngineHost, turnstile: Turnstile
    ) -> None:
        host.load(LoadRequest("a"))
        other = ask(host, "3 4", name="y", max_tokens=40)
        stream = ask(host, "1 2", name="x", max_tokens=40)
        for _ in range(3):
            turnstile.wait()
            turnstile.let_one()
        turnstile.wait()
        host.abort("x")
        error_of(ask(host, ""))  # refused by the text thread, which had read the abort by then
        turnstile.let_one()
        turnstile.wait()
        assert read(stream)[1].reason is FinishReason.ABORT
        turnstile.open()
        assert read(other)[1].reason is FinishReason.LENGTH

    def test_unknown_and_ended_ones(self, host: EngineHost) -> None:
        host.abort("nobody")
        host.load(LoadRequest("a"))
        read(ask(host, name="x"))
        host.abort("x")
        host.abort("nobody")
        assert read(ask(host))[1].reason is FinishReason.LENGTH
