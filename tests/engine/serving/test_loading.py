"""Loading a model: failures, newer wishes, and the way back to the model before."""

from __future__ import annotations

import time

from engine.api.client import LoadRequest
from engine.api.errors import ModelError
from engine.api.status import EnginePhase
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read, say
from tests.support.scripted_loader import TIMEOUT, Loader


class TestLoading:
    def test_a_failure_without_a_model_before(self, host: EngineHost, loader: Loader) -> None:
        loader.failures["bad"] = ModelError("it needs 9 GiB; 4 GiB are free", "model")
        waits = ask(host)
        host.load(LoadRequest("bad"))
        message = "could not load bad: it needs 9 GiB; 4 GiB are free"
        error = error_of(waits)
        assert (error.type, error.message) == ("model_error", message)
        status = host.status()
        assert (status.phase, status.model, status.detail) == (EnginePhase.FAILED, "bad", message)
        assert error_of(ask(host)).message == message
        assert host.snapshot() is None

    def test_after_a_failure_another_may_be_loaded(self, host: EngineHost, loader: Loader) -> None:
        loader.failures["bad"] = ModelError("broken")
        host.load(LoadRequest("bad"))
        error_of(ask(host))
        host.load(LoadRequest("a"))
        assert read(ask(host, "1"))[0] == say("a", [1], 5)
        assert read(ask(host, "2"))[0] == say("a", [2], 5)
        assert host.status().detail == ""

    def test_an_exception_that_is_not_ours(self, host: EngineHost, loader: Loader) -> None:
        loader.failures["bad"] = KeyError("weights")
        host.load(LoadRequest("bad"))
        assert error_of(ask(host)).message == "could not load bad: KeyError: 'weights'"
        host.load(LoadRequest("a"))
        assert read(ask(host, "1"))[0] == say("a", [1], 5)

    def test_a_failure_goes_back_to_the_model_before(
        self, host: EngineHost, loader: Loader
    ) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        gate = loader.gate("bad")
        loader.failures["bad"] = ModelError("broken")
        host.load(LoadRequest("bad"))
        held = ask(host, "3")
        assert loader.entered.wait(TIMEOUT)
        assert loader.closed == ["a"]
        gate.set()
        assert read(held)[0] == say("a", [3], 5)
        status = host.status()
        assert (status.phase, status.model) == (EnginePhase.READY, "a")
        assert status.detail == "could not load bad: broken; a is back"
        assert loader.calls == ["a", "bad", "a"]

    def test_nor_can_it_go_back(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        loader.failures = {"a": ModelError("gone"), "bad": ModelError("broken")}
        host.load(LoadRequest("bad"))
        error = error_of(ask(host))
        assert error.message == "could not load bad: broken; nor go back to a: gone"
        loader.failures = {}
        host.load(LoadRequest("b"))
        assert read(ask(host, "1"))[0] == say("b", [1], 5)

    def test_a_newer_wish_cancels_loading(self, host: EngineHost, loader: Loader) -> None:
        gate = loader.gate("slow")
        waits = ask(host, "1")
        host.load(LoadRequest("slow"))
        assert loader.entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        gate.set()
        assert read(waits)[0] == say("b", [1], 5)
        assert loader.calls == ["slow", "b"]
        assert "slow" not in loader.runners

    def test_a_model_that_is_no_longer_wanted_gets_no_requests(
        self, host: EngineHost, loader: Loader
    ) -> None:
        """Loading ended just when another was asked for."""
        gate = loader.gate("late")
        loader.deaf.add("late")
        host.load(LoadRequest("late"))
        assert loader.entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        held = ask(host, "1")
        gate.set()
        assert read(held)[0] == say("b", [1], 5)
        assert loader.closed == ["late"]

    def test_a_failure_of_what_is_no_longer_wanted_refuses_nobody(
        self, host: EngineHost, loader: Loader
    ) -> None:
        gate = loader.gate("bad")
        loader.failures["bad"] = ModelError("broken")
        host.load(LoadRequest("bad"))
        assert loader.entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        held = ask(host, "1")
        gate.set()
        assert read(held)[0] == say("b", [1], 5)
        assert read(ask(host, "2"))[0] == say("b", [2], 5)

    def test_the_last_of_many_wishes_is_served(self, host: EngineHost, loader: Loader) -> None:
        for i in range(50):
            host.load(LoadRequest(f"m{i}"))
        last = ask(host, "1")
        assert read(last)[0] == say("m49", [1], 5)
        assert host.status().model == "m49"

    def test_the_same_wish_twice(self, host: EngineHost, loader: Loader) -> None:
        request = LoadRequest("a")
        streams = []
        for i in range(20):
            host.load(request)
            streams.append(ask(host, f"{i}"))
        for i, stream in enumerate(streams):
            assert read(stream)[0] == say("a", [i], 5)

    def test_ready_means_that_knobs_can_be_turned(self, loader: Loader) -> None:
        for _ in range(20):
            host = EngineHost(loader)
            host.load(LoadRequest("a"))
            deadline = time.monotonic() + TIMEOUT
            while host.status().phase is not EnginePhase.READY:
                assert time.monotonic() < deadline
            host.set_knobs({"prefill_chunk": 3}, "me")
            assert host.snapshot() is not None
            host.shutdown()
