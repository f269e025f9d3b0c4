"""The end of a host, on purpose and by a bug: every stream ends."""

from __future__ import annotations

import threading

import pytest

from engine.api.client import LoadRequest
from engine.api.errors import EngineError
from engine.api.lifecycle import FinishReason
from engine.api.status import EnginePhase
from engine.batch.plan import StepPlan
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read, say
from tests.support.scripted_loader import TIMEOUT, Loader, Turnstile


class TestShutdown:
    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_every_stream_ends(self, loader: Loader, depth: int) -> None:
        loader.depth, loader.knobs = depth, {"max_num_seqs": 2}
        loader.before_step = turnstile = Turnstile()
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        streams = [ask(host, str(i), max_tokens=60) for i in range(4)]
        turnstile.wait()
        host.load(LoadRequest("b"))
        held = ask(host, "9")
        stopper = threading.Thread(target=host.shutdown)
        stopper.start()
        turnstile.open()
        reasons = {read(stream)[1].reason for stream in streams}
        assert reasons <= {FinishReason.ABORT, FinishReason.ERROR}
        assert error_of(held).message == "the engine was shut down"
        stopper.join(TIMEOUT)
        assert not stopper.is_alive()
        assert host.status().phase is EnginePhase.STOPPED
        assert loader.closed == ["a"]
        assert error_of(ask(host)).type == "unavailable_error"
        host.shutdown()

    def test_what_runs_is_aborted_with_what_it_had(self, loader: Loader) -> None:
        loader.before_step = turnstile = Turnstile()
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        stream = ask(host, "1", max_tokens=60)
        for _ in range(3):
            turnstile.wait()
            turnstile.let_one()
        turnstile.wait()
        host._stopping = True  # as `shutdown` does first, which then blocks
        turnstile.open()
        host.shutdown()
        text, finish = read(stream)
        assert finish.reason is FinishReason.ABORT
        assert finish.usage.completion_tokens == 4
        assert text == say("a", [1], 4)

    def test_without_a_model(self, loader: Loader) -> None:
        host = EngineHost(loader)
        waits = ask(host)
        host.shutdown()
        assert error_of(waits).message == "the engine was shut down"
        assert host.status().phase is EnginePhase.STOPPED
        host.abort("x")
        host.load(LoadRequest("a"))
        assert loader.calls == []

    def test_while_a_model_loads(self, loader: Loader) -> None:
        gate = loader.gate("a")
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        assert loader.entered.wait(TIMEOUT)
        waits = ask(host)
        host._stopping = True
        gate.set()
        host.shutdown()
        assert error_of(waits).type == "unavailable_error"
        assert host.status().phase is EnginePhase.STOPPED
        assert loader.runners == {}


class TestCrash:
    """A bug in the engine thread: everybody is told, nobody waits for ever."""

    def test_every_stream_ends(self, loader: Loader) -> None:
        class Bug(BaseException):
            pass

        def crash(plan: StepPlan) -> None:
            if plan.step == 3:
                raise Bug("boom")

        loader.before_step = crash
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        streams = [ask(host, str(i), max_tokens=20) for i in range(4)]
        message = "the engine failed: Bug: boom"
        for stream in streams:
            assert error_of(stream).message == message
        assert error_of(ask(host)).message == message
        status = host.status()
        assert (status.phase, status.detail) == (EnginePhase.FAILED, message)
        host._thread.join(TIMEOUT)
        assert loader.closed == ["a"]
        assert host.snapshot() is None
        with pytest.raises(EngineError):
            host.set_knobs({"paused": True}, "me")
        host.abort("x")
        host.load(LoadRequest("b"))
        host.shutdown()
        assert host.status().phase is EnginePhase.FAILED

    def test_a_failing_step_is_not_a_crash(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        read(ask(host, max_tokens=1))
        loader.runners["a"].fail_starts = {2}
        assert "scripted failure" in error_of(ask(host)).message
        assert read(ask(host, "1"))[0] == say("a", [1], 5)
