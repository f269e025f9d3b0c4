"""Knobs: what each may be, and the sentence that refuses what it may not."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError
from engine.api.knob_spec import KnobSpec, specs_of
from engine.api.knobs import KNOB_SPECS, MAX_WEIGHTS_LENGTH, Knobs, parse_weights
from engine.core.ledger import KnobLedger

CONFIG = EngineConfig(
    num_blocks=64, max_model_len=512, max_num_seqs=64, max_num_batched_tokens=8_388_608
)
POLICIES = ("stall_free", "static")


def make_ledger(**knobs: object) -> KnobLedger:
    return KnobLedger(Knobs(**knobs), CONFIG, POLICIES)  # type: ignore[arg-type]


def test_every_knob_has_a_spec_and_every_spec_a_knob() -> None:
    assert [spec.name for spec in KNOB_SPECS] == [f.name for f in fields(Knobs)]
    assert all(spec.meaning for spec in KNOB_SPECS)
    assert Knobs() == Knobs(**{spec.name: spec.default for spec in KNOB_SPECS})  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", KNOB_SPECS, ids=lambda spec: spec.name)
def test_every_range_is_one_of_values_of_the_knobs_type(spec: KnobSpec) -> None:
    allowed = spec.range(CONFIG, POLICIES)
    if isinstance(spec.default, bool):
        assert allowed.choices == (True, False)
    elif isinstance(spec.default, str):
        assert bool(allowed.form) != bool(allowed.choices)
        assert all(isinstance(choice, str) for choice in allowed.choices)
    else:
        assert allowed.low < allowed.high
        assert {type(allowed.low), type(allowed.high)} == {type(spec.default)}
        assert spec.step > 0


def test_a_knob_without_a_range_is_an_error() -> None:
    @dataclass(frozen=True, kw_only=True)
    class More(Knobs):
        speed: int = 3

    with pytest.raises(TypeError, match="allowed"):
        specs_of(More)


class TestValidation:
    """Each refusal names the knob, the value and what is allowed."""

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be from 1 to 64"),
            ({"max_num_seqs": 65}, "max_num_seqs is 65; it must be from 1 to 64"),
            ({"max_num_seqs": 4.0}, "max_num_seqs is 4.0; it must be an integer from 1 to 64"),
            ({"max_num_seqs": True}, "max_num_seqs is true; it must be from 1 to 64"),
            ({"max_num_seqs": "8"}, "max_num_seqs is '8'; it must be an integer from 1 to 64"),
            (
                {"max_num_batched_tokens": 8_388_609},
                "max_num_batched_tokens is 8388609; it must be from 1 to 8,388,608",
            ),
            ({"prefill_chunk": -1}, "prefill_chunk is -1; it must be from 0 to 8,388,608"),
            ({"watermark": 0.51}, "watermark is 0.51; it must be from 0 to 0.5"),
            ({"watermark": float("nan")}, "watermark is nan; it must be from 0 to 0.5"),
            ({"queue_limit": 0}, "queue_limit is 0; it must be from 1 to 1,000,000"),
            ({"paused": 1}, "paused is 1; it must be one of true, false"),
            ({"paused": None}, "paused is None; it must be one of true, false"),
            (
                {"policy": "fastest"},
                "policy is 'fastest'; it must be one of 'stall_free', 'static'",
            ),
            (
                {"policy": ["static"]},
                "policy is ['static']; it must be one of 'stall_free', 'static'",
            ),
            (
                {"speed": 1},
                "speed is not a knob; allowed are policy, order, victim, preemption, max_num_seqs, "
                "max_num_batched_tokens, prefill_chunk, max_partial_prefills, watermark, "
                "prefix_caching, static_batch_size, static_fill, batch_window_ms, "
                "waiting_served_ratio, max_waiting_tokens, ttft_target_ms, tpot_target_ms, ageing, "
                "user_weights, queue_limit, draining, paused",
            ),
            (
                {"order": "random"},
                "order is 'random'; it must be one of 'priority', 'fcfs', 'shortest', 'fair'",
            ),
            (
                {"victim": 1},
                "victim is 1; it must be one of 'lowest_priority', 'latest', 'least_computed'",
            ),
            ({"static_fill": "half"}, "static_fill is 'half'; it must be one of 'idle', 'full'"),
            ({"batch_window_ms": -0.1}, "batch_window_ms is -0.1; it must be from 0 to 60,000"),
            (
                {"user_weights": "alice=0"},
                "user_weights is 'alice=0'; it must be a list such as alice=2,bob=0.5, of weights "
                "above 0, in at most 4,096 characters",
            ),
            (
                {"user_weights": 2},
                "user_weights is 2; it must be a list such as alice=2,bob=0.5, of weights above 0, "
                "in at most 4,096 characters",
            ),
            (
                {"max_num_batched_tokens": 31, "paused": True},
                "max_num_batched_tokens is 31; it must be at least max_num_seqs (32), one decode "
                "token for each sequence",
            ),
            (
                {"max_num_seqs": 60, "max_num_batched_tokens": 50},
                "max_num_batched_tokens is 50; it must be at least max_num_seqs (60), one decode "
                "token for each sequence",
            ),
        ],
    )
    def test_refusals(self, changes: dict[str, object], message: str) -> None:
        ledger = make_ledger()
        with pytest.raises(InvalidConfigError) as caught:
            ledger.change(changes, "me", 0.0, 0)
        assert caught.value.message == message
        assert caught.value.param == message.split()[0]
        assert ledger.knobs == Knobs()
        assert ledger.history == ()

    def test_the_field_at_fault_is_the_one_that_was_turned(self) -> None:
        ledger = make_ledger(max_num_seqs=8, max_num_batched_tokens=16)
        with pytest.raises(InvalidConfigError) as caught:
            ledger.change({"max_num_seqs": 17, "watermark": 0.1}, "me", 0.0, 0)
        assert caught.value.param == "max_num_seqs"

    def test_the_first_knobs_are_checked_too(self) -> None:
        with pytest.raises(InvalidConfigError) as caught:
            make_ledger(max_num_seqs=65)
        assert caught.value.param == "max_num_seqs"
        with pytest.raises(InvalidConfigError) as caught:
            make_ledger(max_num_seqs=32, max_num_batched_tokens=31)
        assert caught.value.param == "max_num_batched_tokens"

    @pytest.mark.parametrize("spec", KNOB_SPECS, ids=lambda spec: spec.name)
    def test_both_ends_of_every_range_are_allowed(self, spec: KnobSpec) -> None:
        name = spec.name
        allowed = spec.range(CONFIG, POLICIES)
        ends = ("", "alice=2,bob=0.5") if allowed.form else (allowed.low, allowed.high)
        for value in allowed.choices or ends:
            ledger = make_ledger(max_num_seqs=1)
            assert getattr(ledger.change({name: value}, "me", 0.0, 0), name) == value

    @pytest.mark.parametrize(
        ("text", "weights"),
        [
            ("", {}),
            ("  ", {}),
            ("a=2", {"a": 2.0}),
            (" a = 2 , b=0.5,", {"a": 2.0, "b": 0.5}),
            ("mqtt:x=y=3", {"mqtt:x=y": 3.0}),
            ("a=1,a=4", {"a": 4.0}),
            ("a=1e-3", {"a": 0.001}),
        ],
    )
    def test_weights_by_user(self, text: str, weights: dict[str, float]) -> None:
        assert parse_weights(text) == weights
        assert make_ledger().change({"user_weights": text}, "me", 0.0, 0).user_weights == text

    @pytest.mark.parametrize(
        "text", ["a", "=1", " =1", "a=", "a=x", "a=0", "a=-1", "a=nan", "a=inf"]
    )
    def test_what_is_no_weight(self, text: str) -> None:
        with pytest.raises(InvalidConfigError):
            make_ledger().change({"user_weights": f"b=1,{text}"}, "me", 0.0, 0)

    def test_a_long_list_of_weights_is_refused_in_few_words(self) -> None:
        """Every change is kept with the text before and after, and sent in control messages."""
        ledger = make_ledger()
        longest = "alice=2," * (MAX_WEIGHTS_LENGTH // len("alice=2,"))
        assert len(longest) == MAX_WEIGHTS_LENGTH
        assert ledger.change({"user_weights": longest}, "me", 0.0, 0).user_weights == longest
        for length in (MAX_WEIGHTS_LENGTH + 1, 90_000):
            with pytest.raises(InvalidConfigError) as caught:
                ledger.change({"user_weights": longest.ljust(length)}, "me", 0.0, 0)
            assert caught.value.param == "user_weights"
            assert "at most 4,096 characters" in caught.value.message
            assert len(caught.value.message) < 200

    def test_an_integer_will_do_for_a_share(self) -> None:
        knobs = make_ledger().change({"watermark": 0}, "me", 0.0, 0)
        assert type(knobs.watermark) is float
