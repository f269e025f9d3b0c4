"""The benchmark of the gateway: its paced model, and what its clients make of replies."""

from __future__ import annotations

import json
import time

from benchmarks.mqtt.asking import Heard, digest
from benchmarks.paced import NAME, PacedLoader, reply
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.lifecycle import FinishReason
from engine.serving.host import EngineHost

STEP = 0.002
TOPIC = "llm/v1/default/rep/alice/bench"


def delta(seq: int, text: str) -> bytes:
    choices = [{"index": 0, "delta": {"content": text}}]
    return json.dumps({"type": "delta", "seq": seq, "choices": choices}).encode()


def final(last_seq: int) -> bytes:
    return json.dumps({"type": "final", "last_seq": last_seq, "text": "a b c"}).encode()


def test_the_paced_model_says_its_text_at_its_pace() -> None:
    host = EngineHost(PacedLoader(STEP, max_num_seqs=4, max_model_len=256))
    try:
        host.load(LoadRequest(NAME))
        start = time.monotonic()
        messages = (ChatMessage("user", "any words"),)
        streams = [
            host.submit(Submission(messages=messages, sampling={"max_tokens": 100}))
            for _ in range(4)
        ]
        for stream in streams:
            deltas = list(stream)
            assert "".join(delta.text for delta in deltas) == reply(100)
            assert deltas[-1].finish is not None
            assert deltas[-1].finish.reason is FinishReason.LENGTH
        # Four in one batch take as long as one; a step that is late does not end sooner.
        assert 99 * STEP < time.monotonic() - start < 10.0
    finally:
        host.shutdown()


def test_what_was_heard_is_told_by_request() -> None:
    came = [
        (10.5, f"{TOPIC}/1", json.dumps({"type": "accepted"}).encode()),
        (11.0, f"{TOPIC}/1", delta(0, "a ")),
        (11.5, f"{TOPIC}/2", json.dumps({"type": "error", "error": {"code": 429}}).encode()),
        (12.0, f"{TOPIC}/1", delta(2, "c")),
        (12.5, f"{TOPIC}/1", final(2)),
        (12.5, f"{TOPIC}/3", final(-1)),
        (12.6, f"{TOPIC}/3", final(-1)),
        (12.7, f"{TOPIC}/before", final(-1)),
    ]
    heard = digest(came, {"1": 10.0, "2": 10.0, "3": 10.0, "4": 10.0})
    one = heard["1"]
    assert (one.first("accepted"), one.first("delta"), one.first("final")) == (0.5, 1.0, 2.5)
    assert (one.is_answered, one.lost, one.text) == (True, 1, "a c")
    assert [len(heard[name].endings) for name in "1234"] == [1, 1, 2, 0]
    assert [heard[name].is_answered for name in "234"] == [False, False, False]
    assert heard["4"] == Heard(10.0)
    assert set(heard) == set("1234")
