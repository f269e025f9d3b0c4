"""The captions on the engine during the demonstration."""

from __future__ import annotations

from app.screens.demo.captions import READ_SECONDS, SELDOM_SECONDS, Captions
from engine.api.waiting import Cause, Wait
from tests.support.clock import VirtualClock
from tests.widgets.samples import record


def test_a_line_stays_until_it_was_read_but_for_what_is_seldom() -> None:
    clock = VirtualClock(0.0)
    captions = Captions(lambda request_id: f"Chat {request_id}", clock)
    captions.add_steps([record(1, prefill_rows=0, decode_rows=3, prefix_hit_tokens=0)])
    batch = captions.text
    assert batch == "3 replies get a token each from one step of the model."
    wait = Wait(Cause.SLOT, (8, 8))
    waits = record(2, prefill_rows=0, decode_rows=8, waiting=2, head_wait=wait, prefix_hit_tokens=0)
    clock.advance(SELDOM_SECONDS)
    captions.add_steps([waits])
    assert captions.text == batch
    captions.add_steps([record(3, preempted=("7",))])
    assert captions.text == (
        "Chat 7 was preempted: the cache is full; its blocks were freed and will be recomputed."
    )
    clock.advance(READ_SECONDS)
    captions.add_steps([waits])
    assert captions.text == "2 chats wait; why the first one does: no slot: 8 of 8 are taken."


def test_whoever_was_preempted_is_said_to_be_back() -> None:
    clock = VirtualClock(0.0)
    captions = Captions(lambda request_id: f"Chat {request_id}", clock)
    captions.add_steps([record(1, preempted=("7",), swapped=("7",))])
    assert captions.text == (
        "Chat 7 was preempted: the cache is full; its blocks were copied to host memory."
    )
    clock.advance(READ_SECONDS)
    captions.add_steps([record(2, admitted=("8", "7"), decode_rows=1, prefill_rows=0)])
    assert captions.text == "Chat 7 is back in the batch and continues where it stopped."


def test_a_step_of_several_prompts_is_told_as_one_step() -> None:
    captions = Captions(str, VirtualClock(0.0))
    captions.add_steps(
        [record(1, decode_rows=4, prefill_rows=2, prefill_tokens=60, prefix_hit_tokens=0)]
    )
    assert captions.text == (
        "One step computed 60 prompt tokens, and a token each of 4 replies beside them."
    )


def test_one_reply_beside_a_prompt_is_one() -> None:
    captions = Captions(str, VirtualClock(0.0))
    captions.add_steps(
        [record(1, decode_rows=1, prefill_rows=1, prefill_tokens=60, prefix_hit_tokens=0)]
    )
    assert (
        captions.text == "One step computed 60 prompt tokens, and a token of one reply beside them."
    )


def test_what_was_said_least_comes_first() -> None:
    clock = VirtualClock(0.0)
    captions = Captions(str, clock)
    said = []
    step = record(1, decode_rows=4, prefill_rows=1, prefix_hit_tokens=16, prefix_queried_tokens=32)
    for _ in range(4):
        captions.add_steps([step])
        said.append(captions.text)
        clock.advance(READ_SECONDS)
    assert len(set(said)) == 3
    assert said[3] == said[0]


def test_another_policy_is_told() -> None:
    clock = VirtualClock(0.0)
    captions = Captions(str, clock)
    captions.add_steps([record(1, policy="stall_free")])
    clock.advance(SELDOM_SECONDS)
    captions.add_steps([record(2, policy="static")])
    assert captions.text == "The policy is static now: batch and waiting chats change."
