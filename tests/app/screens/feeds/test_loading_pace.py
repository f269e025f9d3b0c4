from __future__ import annotations

from dataclasses import replace

from app.screens.feeds.engine_watch import LoadingPace
from engine.api.status import EnginePhase, EngineStatus
from tests.support.clock import VirtualClock

LOADING = EngineStatus(EnginePhase.LOADING, "m", "downloading o/m/a.safetensors", 0, 400 << 20)


def test_the_pace_and_the_time_left_are_told_with_the_file() -> None:
    clock = VirtualClock(0.0)
    pace = LoadingPace(clock)
    assert pace.with_pace(LOADING) == LOADING
    clock.advance(4.0)
    told = pace.with_pace(replace(LOADING, loaded_bytes=80 << 20))
    assert told.detail == "20 MiB/s · 16s left · downloading o/m/a.safetensors"


def test_a_download_that_stands_still_has_no_end() -> None:
    clock = VirtualClock(0.0)
    pace = LoadingPace(clock)
    for _ in range(20):
        clock.advance(1.0)
        told = pace.with_pace(replace(LOADING, loaded_bytes=80 << 20))
    assert "/s · – left · " in told.detail


def test_what_counts_no_bytes_is_told_as_it_is() -> None:
    pace = LoadingPace(VirtualClock(0.0))
    ready = EngineStatus(EnginePhase.READY, "m")
    assert pace.with_pace(ready) is ready
    compiling = EngineStatus(EnginePhase.LOADING, "m", "compiling")
    assert pace.with_pace(compiling) is compiling
