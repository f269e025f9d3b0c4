from __future__ import annotations

from dataclasses import replace

import pytest

from app.screens.feeds.engine_watch import EngineWatch
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.status import EnginePhase
from tests.support.clock import VirtualClock
from tests.support.scripted_engine import ScriptedEngine


def asked(engine: ScriptedEngine, text: str = "a b c d") -> None:
    engine.submit(Submission(messages=(ChatMessage("user", text),)))


def test_it_takes_in_what_is_new() -> None:
    engine = ScriptedEngine(loaded=False)
    watch = EngineWatch(engine)
    assert watch.poll() == []
    assert watch.snapshot is None
    assert watch.status.phase is EnginePhase.EMPTY
    engine.load(LoadRequest("m"))
    engine.ready()
    asked(engine)
    engine.advance(2)
    assert [record.step for record in watch.poll()] == [1, 2]
    assert len(watch.views) == 1
    engine.advance()
    assert [record.step for record in watch.poll()] == [3]
    assert watch.poll() == []
    assert [record.step for record in watch.records] == [1, 2, 3]


def test_another_model_counts_its_steps_anew() -> None:
    engine = ScriptedEngine()
    watch = EngineWatch(engine)
    asked(engine)
    engine.finish_all()
    watch.poll()
    assert len(watch.records) > 3
    engine.load(LoadRequest("other"))
    watch.poll()
    assert not watch.records
    engine.ready()
    asked(engine)
    engine.advance()
    assert [record.step for record in watch.poll()] == [1]
    assert watch.on_cpu


def test_another_model_is_noticed_though_it_was_not_seen_loading() -> None:
    engine = ScriptedEngine()
    watch = EngineWatch(engine)
    asked(engine)
    engine.finish_all()
    watch.poll()
    engine.load(LoadRequest("scripted"))
    engine.ready()
    asked(engine)
    engine.advance()
    assert [record.step for record in watch.poll()] == [1]


def test_rates_are_means_over_ten_seconds_or_since_the_last_pause() -> None:
    """By the screen's own clock. Over two seconds, chunks of prompts made them useless."""
    engine, clock = ScriptedEngine(), VirtualClock()
    watch = EngineWatch(engine, clock)
    watch.poll()
    clock.advance(0.5)
    asked(engine, "one two three")
    engine.finish_all()
    watch.poll()
    records = tuple(watch.records)
    output = sum(r.output_tokens for r in records)
    assert output > 0
    assert watch.tokens_per_second == output / 2  # over two seconds at least
    assert watch.prefill_per_second == sum(r.prefill_tokens for r in records) / 2
    assert watch.tokens_per_second_now == output / 2
    for second in range(1, 30):
        clock.advance(1.0)
        for _ in range(3 if second % 2 else 1):
            asked(engine, "one two three")
        engine.finish_all()
        watch.poll()
    # What a look finds came since the look before.
    assert watch.tokens_per_second == pytest.approx(2 * output)
    assert watch.tokens_per_second_now == pytest.approx(2 * output)
    clock.advance(1.0)
    watch.poll()
    assert watch.tokens_per_second == pytest.approx(1.9 * output)
    assert watch.tokens_per_second_now == pytest.approx(1.5 * output)
    clock.advance(1.0)
    watch.poll()
    assert not watch.is_computing
    assert watch.tokens_per_second == watch.prefill_per_second == watch.tokens_per_second_now == 0
    clock.advance(1.0)
    asked(engine, "one two three")
    engine.finish_all()
    watch.poll()
    assert watch.tokens_per_second == output / 2


def test_kv_waste_is_that_of_the_last_seconds_weighted_by_what_was_given() -> None:
    engine, clock = ScriptedEngine(), VirtualClock()
    watch = EngineWatch(engine, clock)
    assert watch.kv_waste is None
    asked(engine, "one two three " * 8)
    engine.finish_all()
    watch.poll()
    given = sum(record.given_slots for record in watch.records)
    unused = sum(record.unused_slots for record in watch.records)
    assert watch.kv_waste == unused / given > 0
    assert len({record.given_slots for record in watch.records}) > 1
    clock.advance(2.5)
    watch.poll()
    assert watch.kv_waste is None


def test_a_knob_by_its_name() -> None:
    engine = ScriptedEngine(loaded=False)
    watch = EngineWatch(engine)
    assert watch.knob("policy") is None
    engine.load(LoadRequest("m"))
    engine.ready()
    watch.poll()
    policy = watch.knob("policy")
    assert policy is not None
    assert policy.requested == "stall_free"


def test_each_knob_change_is_told_once() -> None:
    engine = ScriptedEngine()
    watch = EngineWatch(engine)
    watch.poll()
    assert watch.new_knob_changes() == []
    engine.set_knobs({"max_num_seqs": 4}, who="local")
    engine.set_knobs({"max_num_seqs": 8}, who="local")
    watch.poll()
    assert [change.after.max_num_seqs for change in watch.new_knob_changes()] == [4, 8]
    assert watch.new_knob_changes() == []
    engine.undo_knobs(who="local")
    watch.poll()
    assert [change.undoes for change in watch.new_knob_changes()] == [True]


def test_it_computes_while_there_are_steps() -> None:
    engine, clock = ScriptedEngine(), VirtualClock()
    watch = EngineWatch(engine, clock)
    watch.poll()
    assert not watch.is_computing
    asked(engine)
    engine.advance()
    watch.poll()
    assert watch.is_computing
    clock.advance(2.5)
    watch.poll()
    assert not watch.is_computing


def test_the_epoch_is_that_of_the_newest_state_and_not_of_an_aged_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, wall = ScriptedEngine(), VirtualClock(5000.0)
    monkeypatch.setattr("app.screens.feeds.engine_watch.time.time", wall)
    watch = EngineWatch(engine, wall)
    asked(engine)
    engine.finish_all()
    watch.poll()
    assert watch.snapshot is not None
    epoch = watch.epoch
    assert epoch == 5000.0 - watch.snapshot.time
    aged = replace(watch.snapshot, latency=watch.snapshot.latency)
    monkeypatch.setattr(engine, "snapshot", lambda: aged)
    wall.advance(100.0)
    watch.poll()
    assert watch.snapshot is aged
    assert watch.epoch == epoch


def test_the_epoch_moves_only_with_a_clock_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, now = ScriptedEngine(), VirtualClock(5000.0)
    monkeypatch.setattr("app.screens.feeds.engine_watch.time.time", now)
    watch = EngineWatch(engine)
    asked(engine, "one two three four five")
    seen = []
    for late in (0.2, 0.9, 0.1, 3600.0):  # how long after the snapshot one looks
        before = engine.clock.now
        engine.advance()
        now.advance(engine.clock.now - before)
        snapshot = engine.snapshot()
        assert snapshot is not None
        monkeypatch.setattr(
            "app.screens.feeds.engine_watch.time.time", lambda at=now.now + late: at
        )
        watch.poll()
        seen.append(round(watch.epoch + snapshot.time - now.now, 6))
    assert seen == [0.2, 0.2, 0.1, 3600.0]


def test_a_model_is_named_with_what_it_was_quantized_to() -> None:
    engine = ScriptedEngine()
    watch = EngineWatch(engine)
    watch.poll()
    assert watch.model == "scripted"
    engine.load(LoadRequest("other", quantize="int8"))
    watch.poll()
    assert watch.model == "other"
    engine.ready()
    watch.poll()
    assert watch.model == "other · int8 98.9%"
