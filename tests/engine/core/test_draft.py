"""What a snapshot shows is what was when the engine drafted it, whoever finishes it and when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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
    assert draft.snapshot() == then


def test_all_readers_are_given_the_same_snapshot() -> None:
    draft = busy_engine().core.draft()
    with ThreadPoolExecutor(4) as readers:
        snapshots = list(readers.map(lambda _: draft.snapshot(), range(8)))
    assert all(snapshot is snapshots[0] for snapshot in snapshots)
