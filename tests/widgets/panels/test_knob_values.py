from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.knob_spec import KnobRange, KnobSpec
from engine.api.knobs import KNOB_SPECS, Knobs, KnobState, change_knobs
from engine.core.ledger import KnobLedger
from tests.widgets.samples import CONFIG, POLICIES, knobs
from widgets.panels.knob_values import is_ignored, parsed, turned, typeable


def state(name: str) -> KnobState:
    return next(knob for knob in knobs() if knob.name == name)


def test_numbers_are_parsed_and_the_rest_is_left_to_the_engine() -> None:
    number = state("watermark")
    assert [parsed(number, text) for text in ("12", "-1", "0.5", "1e3", "1.2.3", "-")] == [
        12,
        -1,
        0.5,
        1000.0,
        "1.2.3",
        "-",
    ]


@given(st.data())
def test_turning_ends_at_both_ends_of_the_range_and_the_engine_takes_every_value(
    data: st.DataObject,
) -> None:
    spec = data.draw(st.sampled_from([spec for spec in KNOB_SPECS if spec.step]))
    ledger = KnobLedger(Knobs(), CONFIG, POLICIES)
    knob = next(state for state in ledger.states({}) if state.name == spec.name)
    value = knob.requested
    for up in (True, False):
        for _ in range(128):
            value = turned(knob, value, up)
            assert type(value) is type(knob.requested)
            if spec.name not in ("max_num_seqs", "max_num_batched_tokens"):
                change_knobs(Knobs(), {spec.name: value}, CONFIG, POLICIES)
        assert value == (knob.allowed.high if up else knob.allowed.low)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("prefill_chunk", CONFIG.max_num_batched_tokens // 32),
        ("max_partial_prefills", 1),
        ("ageing", 60.0),
        ("batch_window_ms", 100.0),
    ],
)
def test_a_doubled_knob_leaves_0_for_a_value_that_is_of_use(name: str, first: float) -> None:
    """One press limited the prompts to 128, and the waiting to 45 minutes."""
    assert turned(state(name), type(first)(0), True) == first


def test_a_knob_without_steps_turns_by_its_choices() -> None:
    choices = KnobRange(choices=("a", "b", "c"))
    knob = KnobState(KnobSpec("k", "b", "a knob", choices), "b", "b", "", choices)
    assert turned(knob, "b", True) == "c"
    assert turned(knob, "c", True) == "a"
    assert turned(knob, "a", False) == "c"
    assert turned(knob, "gone", True) == "b"


def test_a_text_is_not_turned_and_stays_text() -> None:
    weights = state("user_weights")
    assert turned(weights, "alice=2", True) == "alice=2"
    assert parsed(weights, "12") == "12"


def test_what_may_be_typed_into_a_knob() -> None:
    assert typeable(state("user_weights")) is None
    allowed = typeable(state("ageing"))
    assert allowed is not None
    for text in ("", "1", "1e", "-.5", "1e-20", ".."):
        assert re.fullmatch(allowed, text)
    for text in ("e", "a", "1 ", "1\r", "1,5"):
        assert not re.fullmatch(allowed, text)


def test_a_knob_is_ignored_if_it_acts_elsewhere_only() -> None:
    ignored = [knob.name for knob in knobs() if is_ignored(knob)]
    assert "static_fill" in ignored
    assert "user_weights" in ignored
    # In force or not as asked is another thing.
    assert not {"max_num_seqs", "policy", "prefill_chunk"} & set(ignored)
