"""Refusals: each comes through its stream and hurts nobody else."""

from __future__ import annotations

import pytest

from engine.api.client import LoadRequest, Submission
from engine.api.lifecycle import FinishReason
from engine.api.status import EnginePhase
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read, say
from tests.support.scripted_loader import Loader, Turnstile
from tests.support.scripted_runner import VOCAB


class TestRefusals:
    """They come through the stream, never as an exception, and hurt nobody else."""

    @pytest.mark.parametrize(
        ("prompt", "options", "kind", "param"),
        [
            ("", {}, "invalid_request_error", "prompt"),
            ("1 two", {}, "invalid_request_error", "prompt"),
            (" ".join(["1"] * 64), {}, "context_length_error", "prompt"),
            ("1 2", {"max_tokens": 63}, "context_length_error", "max_tokens"),
            ("1", {"max_tokens": 64}, "invalid_request_error", "max_tokens"),
            ("1", {"temperature": -1}, "invalid_request_error", "temperature"),
            ("1", {"heat": 1}, "invalid_request_error", "heat"),
            ("1", {"stop_token_ids": [VOCAB]}, "invalid_request_error", "stop_token_ids"),
            ("1", {"priority": "high"}, "invalid_request_error", "priority"),
            ("1", {"deadline": float("inf")}, "invalid_request_error", "deadline"),
            ("1", {"deadline": float("nan")}, "invalid_request_error", "deadline"),
        ],
    )
    def test_bad_requests(
        self, host: EngineHost, prompt: str, options: dict[str, object], kind: str, param: str
    ) -> None:
        host.load(LoadRequest("a"))
        good = ask(host, "5 6", max_tokens=30)
        error = error_of(ask(host, prompt, **options))
        assert (error.type, error.param) == (kind, param)
        assert read(good)[0] == say("a", [5, 6], 30)
        assert host.status().phase is EnginePhase.READY

    def test_token_ids_out_of_range(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        stream = host.submit(Submission(prompt=(1, VOCAB)))
        assert error_of(stream).param == "prompt"

    def test_a_full_queue(self, host: EngineHost, loader: Loader, turnstile: Turnstile) -> None:
        loader.knobs = {"queue_limit": 2}
        host.load(LoadRequest("a"))
        first = ask(host, "9")
        turnstile.wait()
        streams = [ask(host, f"{i}") for i in range(3)]
        error_of(ask(host, ""))  # The text thread refuses it, and has passed on those before it.
        turnstile.open()
        assert error_of(streams[2]).type == "overloaded_error"
        for stream in (first, *streams[:2]):
            assert read(stream)[1].reason is FinishReason.LENGTH

    def test_an_id_that_waits_or_runs(self, host: EngineHost, turnstile: Turnstile) -> None:
        waits = ask(host, "1", name="x")
        assert error_of(ask(host, "2", name="x")).param == "request_id"
        host.load(LoadRequest("a"))
        turnstile.wait()
        error = error_of(ask(host, "3", name="x"))
        assert error.message == "request_id is 'x'; a request with this id has not ended yet"
        turnstile.open()
        assert read(waits)[0] == say("a", [1], 5)
        assert read(ask(host, "4", name="x"))[0] == say("a", [4], 5)

    def test_an_id_that_runs_on_the_model_before(
        self, host: EngineHost, turnstile: Turnstile
    ) -> None:
        host.load(LoadRequest("a"))
        runs = ask(host, "1", name="x")
        turnstile.wait()
        host.load(LoadRequest("b"))
        assert error_of(ask(host, "2", name="x")).param == "request_id"
        turnstile.open()
        assert read(runs)[0] == say("a", [1], 5)

    def test_a_reader_whose_wake_fails(self, host: EngineHost) -> None:
        def broken() -> None:
            raise RuntimeError("the loop is closed")

        waits = [ask(host, str(i), name=f"w{i}", wake=broken) for i in range(3)]
        host.abort("w0")
        assert read(waits[0])[1].reason is FinishReason.ABORT
        host.load(LoadRequest("a"))
        streams = [ask(host, "", wake=broken), ask(host, "1", wake=broken), ask(host, "2")]
        assert read(streams[0])[1].reason is FinishReason.ERROR
        for stream in (*waits[1:], *streams[1:]):
            assert read(stream)[1].reason is FinishReason.LENGTH
        host.shutdown()
        late = ask(host, "1", wake=broken)
        assert error_of(late).type == "unavailable_error"
