"""Requests beyond the limits are refused with the numbers, and no knob exceeds the envelope."""

from __future__ import annotations

import pytest

from engine.api.errors import InvalidConfigError
from engine.api.lifecycle import FinishReason
from engine.core.admission import MAX_PRIORITY
from tests.support.harness import SHAPE, CoreHarness

PROMPT = list(range(100, 108))


class TestNeverFits:
    """A request that can never fit is refused at submit, with the numbers."""

    @pytest.mark.parametrize(
        ("prompt", "max_tokens", "min_tokens", "param", "numbers"),
        [
            (0, 1, 0, "prompt", ["empty"]),
            (48, 1, 0, "prompt", ["48", "47", "context length is 64", "pool 48"]),
            (500, None, 0, "prompt", ["500", "47"]),
            (40, 9, 0, "max_tokens", ["9", "40", "at most 8"]),
            (40, None, 9, "min_tokens", ["9", "40", "at most 8"]),
        ],
    )
    def test_refused_with_the_numbers(
        self, prompt: int, max_tokens: int | None, min_tokens: int, param: str, numbers: list[str]
    ) -> None:
        engine = CoreHarness(num_blocks=12, max_model_len=64)
        engine.submit("a", list(range(prompt)), max_tokens, min_tokens=min_tokens)
        engine.submit("b", PROMPT, 2)
        engine.finish()
        end = engine.ends["a"]
        assert end.reason is FinishReason.ERROR
        assert end.error is not None
        kind = "context_length_error" if prompt else "invalid_request_error"
        assert (end.error.type, end.error.param) == (kind, param)
        for number in numbers:
            assert number in end.error.message
        assert engine.ends["b"].reason is FinishReason.LENGTH

    @pytest.mark.parametrize(("num_blocks", "max_model_len"), [(12, 64), (32, 48)])
    @pytest.mark.parametrize("prompt", [1, 40, 47])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_what_just_fits_is_served_to_the_end(
        self, num_blocks: int, max_model_len: int, prompt: int, depth: int
    ) -> None:
        engine = CoreHarness(num_blocks=num_blocks, max_model_len=max_model_len, depth=depth)
        engine.submit("a", list(range(prompt)), None)
        engine.submit("b", list(range(300, 300 + prompt)), 48 - prompt)
        engine.finish()
        for name in "ab":
            assert engine.ends[name].reason is FinishReason.LENGTH
            assert len(engine.tokens[name]) == 48 - prompt

    @pytest.mark.parametrize(
        ("options", "param"),
        [
            ({"deadline": float("nan")}, "deadline"),
            ({"deadline": float("inf")}, "deadline"),
            ({"deadline": 0}, "deadline"),
            ({"deadline": -1.0}, "deadline"),
            ({"deadline": 10**400}, "deadline"),
            ({"deadline": "soon"}, "deadline"),
            ({"priority": "high"}, "priority"),
            ({"priority": 1.5}, "priority"),
            ({"priority": True}, "priority"),
            ({"priority": 10**400}, "priority"),
            ({"priority": -MAX_PRIORITY - 1}, "priority"),
        ],
    )
    def test_a_place_in_the_queue_that_makes_no_sense(
        self, options: dict[str, object], param: str
    ) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 2, **options)
        engine.submit("b", PROMPT, 2, deadline=5.0)
        engine.finish()
        error = engine.ends["a"].error
        assert error is not None
        assert error.param == param
        assert repr(options[param]) in error.message
        assert engine.ends["b"].reason is FinishReason.LENGTH


def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused() -> None:
    engine = CoreHarness()
    last = SHAPE.vocab_size - 1
    engine.submit("good", PROMPT, 2, logit_bias=((last, 1.0),))
    engine.submit("bad", PROMPT, 2, logit_bias=((5, 1.0), (last + 1, 1.0)))
    engine.finish()
    assert engine.ends["good"].error is None
    error = engine.ends["bad"].error
    assert error is not None
    assert (error.type, error.param) == ("invalid_request_error", "logit_bias")
    assert error.message == f"logit_bias has token id {last + 1}; the model's are 0 to {last}"


class TestLargestStep:
    """Memory is sized for the envelope, so no knob leads out of it."""

    def test_the_largest_step_is_full_and_no_larger(self) -> None:
        engine = CoreHarness(max_num_seqs=4, max_num_batched_tokens=16)
        for i in range(6):
            engine.submit(f"r{i}", list(range(100 * i, 100 * i + 6)), 3)
        engine.finish()
        assert max(plan.num_tokens for plan in engine.runner.plans) == 16
        assert max(len(plan.rows) for plan in engine.runner.plans) == 4
        for knob, value in (("max_num_seqs", 5), ("max_num_batched_tokens", 17)):
            with pytest.raises(InvalidConfigError):
                engine.core.change_knobs({knob: value}, "test")
