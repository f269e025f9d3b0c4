"""Metrics of an engine whose models come and go."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from app.gateway.http.metrics.watch import Watch
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.lifecycle import FinishReason
from engine.api.telemetry import Samples
from engine.core import observer
from engine.serving.host import EngineHost
from tests.support.asking import ask as ask_host
from tests.support.asking import read, snapshot_when
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_loader import TIMEOUT, Loader


def ask(engine: ScriptedEngine, words: int = 4) -> str:
    """A request whose reply has so many words, and one token more for its end."""
    text = " ".join(f"word{number}" for number in range(words))
    submission = Submission(messages=(ChatMessage("user", text),))
    engine.submit(submission)
    return submission.request_id


def switch(engine: ScriptedEngine, model: str) -> None:
    engine.load(LoadRequest(model))
    engine.ready()


def test_each_token_and_end_is_counted_once_however_often_it_looks() -> None:
    engine = ScriptedEngine()
    watch = Watch(engine)
    ask(engine)
    while engine.advance():
        watch.update(engine.snapshot())
        watch.catch_up()
        watch.update(engine.snapshot())
    watch.update(engine.snapshot())
    snapshot = engine.snapshot()
    assert snapshot is not None
    counts = watch.counts["scripted"]
    assert counts.totals["generation_tokens"] == snapshot.totals.output_tokens > 1
    assert counts.totals["prompt_tokens"] == snapshot.totals.prompt_tokens > 0
    assert counts.totals["steps"] == snapshot.step
    assert counts.ended == {FinishReason.STOP: 1}
    gaps = counts.histograms["inter_token_latency_seconds"].buckets[-1][1]
    assert gaps == snapshot.totals.output_tokens - 1
    assert counts.histograms["time_to_first_token_seconds"].buckets[-1][1] == 1
    assert counts.histograms["request_prompt_tokens"].sum == snapshot.totals.prompt_tokens
    assert sum(watch.missed.values()) == 0


def test_a_model_that_is_loaded_again_goes_on_counting() -> None:
    engine = ScriptedEngine()
    watch = Watch(engine)
    tokens = []
    for model in ("scripted", "other", "scripted"):
        switch(engine, model)
        watch.update(engine.snapshot())
        ask(engine)
        engine.finish_all()
        watch.update(engine.snapshot())
        tokens.append(watch.counts[model].totals["generation_tokens"])
    assert tokens[0] == tokens[1] > 0
    assert tokens[2] == 2 * tokens[0]
    assert watch.counts["scripted"].totals["requests"] == 2
    assert watch.counts["other"].totals["requests"] == 1


def test_the_last_steps_of_a_model_count_for_it_alone() -> None:
    """No look falls between its last steps and the first ones of the next, of which it has more."""
    engine = ScriptedEngine()
    watch = Watch(engine)
    ask(engine, 9)
    engine.advance(2)
    watch.update(engine.snapshot())
    engine.finish_all()
    watch.catch_up()
    before = watch.counts["scripted"].totals["steps"]
    switch(engine, "other")
    ask(engine, 30)
    engine.finish_all()
    watch.catch_up()
    assert watch.counts["scripted"].totals["steps"] == before
    watch.update(engine.snapshot())
    snapshot = engine.snapshot()
    assert snapshot is not None
    assert watch.counts["other"].totals["steps"] == snapshot.step > before
    assert watch.counts["scripted"].totals["steps"] == before
    assert watch.missed["records"] == 0


def test_steps_before_a_load_are_taken_while_it_lasts() -> None:
    engine = ScriptedEngine()
    watch = Watch(engine)
    ask(engine)
    engine.advance()
    watch.update(engine.snapshot())
    engine.finish_all()
    engine.load(LoadRequest("other"))
    watch.update(engine.snapshot())
    assert watch.snapshot is None
    assert watch.counts["scripted"].ended == {FinishReason.STOP: 1}


def test_steps_before_the_first_look_count_too() -> None:
    engine = ScriptedEngine()
    watch = Watch(engine)
    watch.update(engine.snapshot())
    ask(engine)
    engine.finish_all()
    engine.load(LoadRequest("scripted"))
    watch.update(engine.snapshot())
    engine.ready()
    ask(engine)
    engine.finish_all()
    watch.catch_up()
    snapshot = engine.snapshot()
    watch.update(snapshot)
    assert snapshot is not None
    assert watch.counts["scripted"].ended == {FinishReason.STOP: 2}
    assert watch.counts["scripted"].totals["generation_tokens"] == 2 * snapshot.totals.output_tokens


def test_what_was_overwritten_is_counted_as_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "RECORDS", 4)
    engine = ScriptedEngine()
    watch = Watch(engine)
    ask(engine, 30)
    engine.advance(3)
    watch.update(engine.snapshot())
    engine.advance(10)
    watch.catch_up()
    assert watch.counts["scripted"].totals["steps"] == 3 + 4
    snapshot = engine.snapshot()
    assert snapshot is not None
    gaps = Samples(capacity=4)
    for number in range(16):
        gaps.add(float(number), 1.0)
    samples = {**snapshot.latency.samples, "itl": gaps}
    watch.update(replace(snapshot, latency=replace(snapshot.latency, samples=samples)))
    assert watch.counts["scripted"].totals["steps"] == 3 + 4
    # Of 16 gaps two were seen after three steps, and four are still held.
    assert watch.missed == {"records": 6, "itl": 16 - 2 - 4, "ttft": 0}


def test_aborts_are_no_latencies() -> None:
    engine = ScriptedEngine()
    watch = Watch(engine)
    gone = ask(engine, 9)
    ask(engine)
    engine.advance(2)
    engine.abort(gone)
    engine.finish_all()
    watch.update(engine.snapshot())
    counts = watch.counts["scripted"]
    assert counts.ended == {FinishReason.STOP: 1, FinishReason.ABORT: 1}
    assert counts.histograms["e2e_request_latency_seconds"].buckets[-1][1] == 1
    assert counts.histograms["request_generation_tokens"].buckets[-1][1] == 1


def test_what_an_engine_did_before_it_let_its_model_go_is_counted() -> None:
    loader = Loader()
    loader.gates["b"] = threading.Event()
    host = EngineHost(loader)
    try:
        watch = Watch(host)
        host.load(LoadRequest("a"))
        watch.update(snapshot_when(host, lambda snapshot: True))
        streams = [ask_host(host, f"{number} 1", max_tokens=3) for number in range(9)]
        host.load(LoadRequest("b"))
        for stream in streams:
            read(stream)
        assert loader.entered.wait(TIMEOUT)
        watch.update(host.snapshot())
        loader.gates["b"].set()
        read(ask_host(host, "2", max_tokens=4))
        watch.update(snapshot_when(host, lambda snapshot: snapshot.model.name == "b"))
    finally:
        loader.gates["b"].set()
        host.shutdown()
    assert watch.counts["a"].ended == {FinishReason.LENGTH: 9}
    assert watch.counts["a"].totals["generation_tokens"] == 9 * 3
    assert watch.counts["b"].ended == {FinishReason.LENGTH: 1}
    assert watch.counts["b"].totals["generation_tokens"] == 4
