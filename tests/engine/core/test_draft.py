"""A snapshot shows the state when the engine drafted it, whoever finishes it and when."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

from engine.core.latencies import WINDOW
from tests.support.harness import CoreHarness

PROMPT = list(range(100, 140))


def busy_engine() -> CoreHarness:
    """One request runs and has produced tokens, one shares its blocks, one has ended, two wait."""
    engine = CoreHarness(max_num_seqs=2, block_size=4)
    engine.submit("short", PROMPT[:6], 1)
    engine.submit("long", PROMPT, 20)
    for _ in range(3):
        engine.step()
    engine.submit("sharing", PROMPT, 20)
    engine.step()
    engine.submit("late", PROMPT, 3)
    engine.submit("later", PROMPT[5:], 3)
    for _ in range(4):
        engine.step()
    return engine


def test_a_snapshot_that_is_read_later_is_of_its_draft() -> None:
    engine = busy_engine()
    then = engine.snapshot()
    assert (then.num_running, then.num_waiting, len(then.requests)) == (2, 2, 5)
    assert then.sharing
    assert then.latency.itl.count > 4
    draft = engine.core.draft()
    engine.core.change_knobs({"max_num_seqs": 1}, "test")
    engine.finish()
    assert draft.snapshot(then.time) == then


def test_all_readers_are_given_the_same_snapshot() -> None:
    draft = busy_engine().core.draft()
    now = draft.time
    with ThreadPoolExecutor(4) as readers:
        snapshots = list(readers.map(lambda _: draft.snapshot(now), range(8)))
    assert all(snapshot is snapshots[0] for snapshot in snapshots)


def test_the_windows_of_an_idle_engine_move_with_the_reader() -> None:
    """Nothing wakes the engine for it: the draft stays the same."""
    engine = busy_engine()
    engine.finish()
    draft = engine.core.draft()
    fresh = draft.snapshot(draft.time)
    assert fresh.latency.ttft.count > 0
    assert fresh.goodput.share == 1.0
    assert draft.snapshot(draft.time + 0.5) is fresh
    reads = engine.clock.reads
    old = draft.snapshot(draft.time + WINDOW + 40)
    assert engine.clock.reads == reads
    view = old.latency
    assert [of.count for of in (view.ttft, view.tpot, view.itl, view.queue, view.e2e)] == [0] * 5
    assert math.isnan(view.ttft.p99)
    assert math.isnan(old.goodput.share)
    assert (old.time, view.until) == (fresh.time, fresh.time + WINDOW + 40)
    assert (old.requests, old.totals) == (fresh.requests, fresh.totals)
    assert draft.snapshot(draft.time + WINDOW + 80) is old  # there is nothing left that may age


def test_who_waits_grows_late_while_a_step_takes_long() -> None:
    engine = CoreHarness(max_num_seqs=1, ttft_target_ms=2000.0)
    engine.submit("runs", [1, 2], 9)
    engine.submit("waits", [3], 1)
    engine.step()
    draft = engine.core.draft()
    assert math.isnan(draft.snapshot(draft.time).goodput.share)
    late = draft.snapshot(draft.time + 3.0).goodput
    assert (late.share, late.late) == (0.0, 2)  # one waits, the other has got no second token
