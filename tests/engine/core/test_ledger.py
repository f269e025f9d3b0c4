"""KnobLedger: atomic change, history, undo, many threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.api.config import EngineConfig
from engine.api.knobs import KNOB_SPECS, Knobs
from engine.core.ledger import HISTORY_LIMIT, KnobLedger

CONFIG = EngineConfig(
    num_blocks=64, max_model_len=512, max_num_seqs=64, max_num_batched_tokens=8_388_608
)


def make_ledger(**knobs: object) -> KnobLedger:
    return KnobLedger(Knobs(**knobs), CONFIG, ("stall_free", "static"))  # type: ignore[arg-type]


def test_why_a_knob_starts_where_it_does_is_said_until_it_is_turned() -> None:
    knobs, policies = Knobs(max_num_seqs=64), ("stall_free", "static")
    ledger = KnobLedger(knobs, CONFIG, policies, {"max_num_seqs": "by this GPU"})

    def notes(**effective: tuple[int, str]) -> dict[str, str]:
        return {state.name: state.note for state in ledger.states(effective) if state.note}

    assert notes() == {"max_num_seqs": "by this GPU"}
    assert notes(max_num_seqs=(70, "6 more")) == {"max_num_seqs": "6 more"}
    ledger.change({"max_num_seqs": 4}, "me", 0.0, 1)
    assert notes() == {}
    ledger.undo("me", 0.0, 2)
    assert notes() == {"max_num_seqs": "by this GPU"}


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
        assert [undone(ledger, "you") for _ in range(4)] == [(3, 2), (2, 1), (1, 32), None]
        undos = [change for change in ledger.history if change.undoes]
        assert [change.changed["max_num_seqs"] for change in undos] == [(3, 2), (2, 1), (1, 32)]
        assert {change.who for change in undos} == {"you"}

    def test_a_turn_of_one_knob_by_one_person_is_one_step(self) -> None:
        ledger = make_ledger()
        turns = [
            (31, "me", 0.0),
            (16, "me", 5.0),
            (8, "me", 7.0),
            (4, "me", 10.0),
            (2, "you", 11.0),
        ]
        for value, who, time in turns:
            ledger.change({"max_num_seqs": value}, who, time, 0)
        ledger.change({"watermark": 0.02}, "you", 11.5, 0)
        ledger.change({"watermark": 0.03}, "you", 12.0, 0)
        change = ledger.undo("me", 13.0, 0, within=3.0)
        assert change is not None
        assert change.changed == {"watermark": (0.03, 0.01)}
        assert [undone(ledger, within=3.0) for _ in range(4)] == [(2, 4), (4, 31), (31, 32), None]

    def test_what_was_turned_back_at_once_is_turned_again(self) -> None:
        ledger = make_ledger()
        for value in (16, 8, 32):
            ledger.change({"max_num_seqs": value}, "me", 0.0, 0)
        assert [undone(ledger, within=3.0) for _ in range(3)] == [(32, 16), (16, 32), None]


def undone(ledger: KnobLedger, who: str = "me", within: float = 0.0) -> object:
    """The change of max_num_seqs by an undo, before and after; None if there is none."""
    change = ledger.undo(who, 20.0, 1, within)
    return change and change.changed["max_num_seqs"]


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
