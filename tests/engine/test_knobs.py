"""Knobs: validation, atomic change, history, undo, many threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, fields
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.config import EngineConfig
from engine.errors import InvalidConfigError
from engine.knobs import HISTORY_LIMIT, KNOB_SPECS, KnobLedger, Knobs, knob_range

CONFIG = EngineConfig(
    num_blocks=64, max_model_len=512, max_num_seqs=64, max_num_batched_tokens=8_388_608
)
POLICIES = ("stall_free", "static")


def make_ledger(**knobs: object) -> KnobLedger:
    return KnobLedger(Knobs(**knobs), CONFIG, POLICIES)  # type: ignore[arg-type]


def test_every_knob_has_a_spec_and_every_spec_a_knob() -> None:
    assert [spec.name for spec in KNOB_SPECS] == [f.name for f in fields(Knobs)]
    assert all(spec.meaning for spec in KNOB_SPECS)


class TestValidation:
    """Each refusal names the knob, the value and what is allowed."""

    @pytest.mark.parametrize(
        ("changes", "param", "message"),
        [
            (
                {"max_num_seqs": 0},
                "max_num_seqs",
                "max_num_seqs is 0; it must be from 1 to 64",
            ),
            (
                {"max_num_seqs": 65},
                "max_num_seqs",
                "max_num_seqs is 65; it must be from 1 to 64",
            ),
            (
                {"max_num_seqs": 4.0},
                "max_num_seqs",
                "max_num_seqs is 4.0; it must be from 1 to 64",
            ),
            (
                {"max_num_seqs": True},
                "max_num_seqs",
                "max_num_seqs is true; it must be from 1 to 64",
            ),
            (
                {"max_num_seqs": "8"},
                "max_num_seqs",
                "max_num_seqs is '8'; it must be from 1 to 64",
            ),
            (
                {"max_num_batched_tokens": 8_388_609},
                "max_num_batched_tokens",
                "max_num_batched_tokens is 8388609; it must be from 1 to 8388608",
            ),
            (
                {"prefill_chunk": -1},
                "prefill_chunk",
                "prefill_chunk is -1; it must be from 0 to 8388608",
            ),
            (
                {"watermark": 0.51},
                "watermark",
                "watermark is 0.51; it must be from 0.0 to 0.5",
            ),
            (
                {"watermark": float("nan")},
                "watermark",
                "watermark is nan; it must be from 0.0 to 0.5",
            ),
            (
                {"queue_limit": 0},
                "queue_limit",
                "queue_limit is 0; it must be from 1 to 1000000",
            ),
            ({"paused": 1}, "paused", "paused is 1; it must be one of true, false"),
            ({"paused": None}, "paused", "paused is None; it must be one of true, false"),
            (
                {"policy": "fastest"},
                "policy",
                "policy is 'fastest'; it must be one of 'stall_free', 'static'",
            ),
            (
                {"policy": ["static"]},
                "policy",
                "policy is ['static']; it must be one of 'stall_free', 'static'",
            ),
            (
                {"speed": 1},
                "speed",
                "speed is no knob; allowed are policy, max_num_seqs, max_num_batched_tokens, "
                "prefill_chunk, watermark, prefix_caching, queue_limit, draining, paused",
            ),
            (
                {"max_num_batched_tokens": 31, "paused": True},
                "max_num_batched_tokens",
                "max_num_batched_tokens is 31; it must be at least max_num_seqs (32), one decode "
                "token for each sequence",
            ),
            (
                {"max_num_seqs": 60, "max_num_batched_tokens": 50},
                "max_num_batched_tokens",
                "max_num_batched_tokens is 50; it must be at least max_num_seqs (60), one decode "
                "token for each sequence",
            ),
        ],
    )
    def test_refusals(self, changes: dict[str, object], param: str, message: str) -> None:
        ledger = make_ledger()
        with pytest.raises(InvalidConfigError) as caught:
            ledger.change(changes, "me", 0.0, 0)
        assert (caught.value.message, caught.value.param) == (message, param)
        assert ledger.knobs == Knobs()
        assert ledger.history == ()

    def test_the_field_at_fault_is_the_one_that_was_turned(self) -> None:
        ledger = make_ledger(max_num_seqs=8, max_num_batched_tokens=16)
        with pytest.raises(InvalidConfigError) as caught:
            ledger.change({"max_num_seqs": 17, "watermark": 0.1}, "me", 0.0, 0)
        assert caught.value.param == "max_num_seqs"

    def test_a_valid_change_beside_a_bad_one_is_not_made(self) -> None:
        ledger = make_ledger()
        with pytest.raises(InvalidConfigError):
            ledger.change({"paused": True, "watermark": 2}, "me", 0.0, 0)
        assert ledger.knobs == Knobs()

    def test_the_first_knobs_are_checked_too(self) -> None:
        with pytest.raises(InvalidConfigError) as caught:
            make_ledger(max_num_seqs=65)
        assert caught.value.param == "max_num_seqs"
        with pytest.raises(InvalidConfigError) as caught:
            make_ledger(max_num_seqs=32, max_num_batched_tokens=31)
        assert caught.value.param == "max_num_batched_tokens"

    @pytest.mark.parametrize("spec", KNOB_SPECS, ids=lambda spec: spec.name)
    def test_both_ends_of_every_range_are_allowed(self, spec: object) -> None:
        name = spec.name  # type: ignore[attr-defined]
        allowed = knob_range(name, CONFIG, POLICIES)
        for value in allowed.choices or (allowed.low, allowed.high):
            ledger = make_ledger(max_num_seqs=1)
            assert getattr(ledger.change({name: value}, "me", 0.0, 0), name) == value

    def test_an_integer_will_do_for_a_share(self) -> None:
        knobs = make_ledger().change({"watermark": 0}, "me", 0.0, 0)
        assert type(knobs.watermark) is float


class TestHistory:
    def test_who_when_what(self) -> None:
        ledger = make_ledger()
        before = ledger.knobs
        after = ledger.change({"max_num_seqs": 4, "paused": True}, "me", 12.5, 7)
        (change,) = ledger.history
        assert (change.time, change.step, change.who) == (12.5, 7, "me")
        assert (change.before, change.after, change.undoes) == (before, after, False)
        assert change.changed == {"max_num_seqs": (32, 4), "paused": (False, True)}
        assert asdict(ledger.knobs) == asdict(before) | {"max_num_seqs": 4, "paused": True}

    def test_what_changes_nothing_is_not_recorded(self) -> None:
        ledger = make_ledger()
        ledger.change({"max_num_seqs": 32}, "me", 0.0, 0)
        ledger.change({}, "me", 0.0, 0)
        assert ledger.history == ()

    def test_it_is_bounded(self) -> None:
        ledger = make_ledger()
        for i in range(HISTORY_LIMIT + 50):
            ledger.change({"max_num_seqs": 1 + i % 2}, "me", float(i), i)
        assert len(ledger.history) == HISTORY_LIMIT
        assert ledger.history[-1].step == HISTORY_LIMIT + 49


class TestUndo:
    def test_back_through_all_changes(self) -> None:
        ledger = make_ledger()
        for value in (1, 2, 3):
            ledger.change({"max_num_seqs": value}, "me", 0.0, 0)
        assert [ledger.undo("you", 1.0, 1).max_num_seqs for _ in range(5)] == [2, 1, 32, 32, 32]
        undos = [change for change in ledger.history if change.undoes]
        assert [change.changed["max_num_seqs"] for change in undos] == [(3, 2), (2, 1), (1, 32)]
        assert {change.who for change in undos} == {"you"}

    def test_a_change_after_an_undo_is_undone_first(self) -> None:
        ledger = make_ledger()
        for value in (1, 2):
            ledger.change({"max_num_seqs": value}, "me", 0.0, 0)
        ledger.undo("me", 0.0, 0)
        ledger.change({"max_num_seqs": 9}, "me", 0.0, 0)
        assert [ledger.undo("me", 0.0, 0).max_num_seqs for _ in range(3)] == [1, 32, 32]

    def test_without_a_change_nothing_happens(self) -> None:
        ledger = make_ledger()
        assert ledger.undo("me", 0.0, 0) == Knobs()
        assert ledger.history == ()


class LedgerMachine(RuleBasedStateMachine):
    """Undo against a stack."""

    @initialize()
    def start(self) -> None:
        self.ledger = make_ledger()
        self.stack = [self.ledger.knobs]

    @rule(
        changes=st.fixed_dictionaries(
            {}, optional={"max_num_seqs": st.integers(1, 3), "paused": st.booleans()}
        )
    )
    def change(self, changes: dict[str, object]) -> None:
        after = self.ledger.change(changes, "me", 0.0, 0)
        if after != self.stack[-1]:
            self.stack.append(after)

    @rule()
    def undo(self) -> None:
        if len(self.stack) > 1:
            self.stack.pop()
        self.ledger.undo("me", 0.0, 0)

    @invariant()
    def agrees(self) -> None:
        assert self.ledger.knobs == self.stack[-1]
        history = self.ledger.history
        for one, next_one in pairwise(history):
            assert one.after == next_one.before
        assert not history or history[-1].after == self.ledger.knobs


TestLedger = LedgerMachine.TestCase


def test_states_show_requested_beside_effective() -> None:
    ledger = make_ledger(max_num_seqs=4)
    states = {s.name: s for s in ledger.states({"max_num_seqs": (7, "3 more still run")})}
    assert list(states) == [spec.name for spec in KNOB_SPECS]
    seqs = states["max_num_seqs"]
    assert (seqs.requested, seqs.effective, seqs.note) == (4, 7, "3 more still run")
    assert str(seqs.allowed) == "from 1 to 64"
    others = [state for name, state in states.items() if name != "max_num_seqs"]
    assert all(state.requested == state.effective and not state.note for state in others)


@pytest.fixture
def _threads_switch_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_threads_switch_often")
def test_changes_from_many_threads_are_all_made() -> None:
    """Each thread turns its own knob; none of them may bring back an old value of another."""
    ledger = make_ledger(watermark=0.0)
    values = range(1, 31)
    knobs = ("max_num_seqs", "prefill_chunk", "queue_limit", "watermark")
    barrier = threading.Barrier(len(knobs) + 1)

    def turn(name: str) -> None:
        barrier.wait(10)
        for value in values:
            ledger.change({name: value / 100 if name == "watermark" else value}, name, 0.0, 0)

    threads = [threading.Thread(target=turn, args=(name,)) for name in knobs]
    for thread in threads:
        thread.start()
    barrier.wait(10)
    for thread in threads:
        thread.join(10)
    final = ledger.knobs
    assert (final.max_num_seqs, final.prefill_chunk, final.queue_limit, final.watermark) == (
        30,
        30,
        30,
        0.3,
    )
    history = ledger.history
    assert len(history) == len(knobs) * len(values)
    for one, next_one in pairwise(history):
        assert one.after == next_one.before
        assert set(next_one.changed) == {next_one.who}
