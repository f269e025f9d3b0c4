"""An idle host: it does nothing, and wakes for a deadline."""

from __future__ import annotations

import time

from engine.api.client import LoadRequest
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read, say
from tests.support.scripted_loader import Loader


class CountingClock:
    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return time.monotonic()


class TestIdle:
    def test_an_idle_engine_does_nothing(self, loader: Loader) -> None:
        clock = CountingClock()
        host = EngineHost(loader, clock)
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({"paused": True}, "me")
        waits = ask(host, "1")
        assert not waits.wait(0.05)  # time for what was asked to settle
        reads, plans = clock.reads, len(loader.runners["a"].plans)
        assert not waits.wait(0.1)
        assert (clock.reads, len(loader.runners["a"].plans)) == (reads, plans)
        assert host.snapshot() is not None
        host.undo_knobs("me")
        assert read(waits)[0] == say("a", [1], 5)
        host.shutdown()

    def test_it_wakes_for_a_deadline(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({"paused": True}, "me")
        late, patient = ask(host, "1", deadline=0.02), ask(host, "2", deadline=3e7)
        error = error_of(late)
        assert (error.type, error.param) == ("deadline_error", "deadline")
        host.undo_knobs("me")
        assert read(patient)[0] == say("a", [2], 5)
