"""Sampling parameters, and a request's arithmetic."""

from __future__ import annotations

import math

import pytest

from engine.errors import InvalidRequestError
from engine.request import MAX_STOPS, FinishReason, RequestTimings, SamplingParams
from tests.support.harness import make_request


class TestSamplingParams:
    @pytest.mark.parametrize(
        ("field", "value", "allowed"),
        [
            ("temperature", -0.1, "a number from 0 to 100"),
            ("temperature", math.nan, "a number from 0 to 100"),
            ("temperature", math.inf, "a number from 0 to 100"),
            ("temperature", "hot", "a number from 0 to 100"),
            ("temperature", True, "a number from 0 to 100"),
            ("temperature", None, "a number from 0 to 100"),
            ("top_p", 0.0, "a number above 0 and at most 1"),
            ("top_p", 1.01, "a number above 0 and at most 1"),
            ("min_p", -1e-9, "a number from 0 to 1"),
            ("repetition_penalty", 0, "a number above 0 and at most 100"),
            ("presence_penalty", 2.5, "a number from -2 to 2"),
            ("frequency_penalty", -2.5, "a number from -2 to 2"),
            ("top_k", -1, "an integer from 0 to 2147483647"),
            ("top_k", 1.0, "an integer from 0 to 2147483647"),
            ("top_k", 2**31, "an integer from 0 to 2147483647"),
            ("min_tokens", -1, "an integer from 0 to 2147483647"),
            ("seed", -1, "an integer from 0 to 18446744073709551615"),
            ("seed", 2**64, "an integer from 0 to 18446744073709551615"),
            ("max_tokens", 0, "an integer from 1 to 2147483647"),
            ("max_tokens", 10.5, "an integer from 1 to 2147483647"),
            ("max_tokens", True, "an integer from 1 to 2147483647"),
            ("ignore_eos", 1, "true or false"),
            ("stop", ("",), "a list of non-empty strings"),
            ("stop", "abc", "a list of non-empty strings"),
            ("stop", (1,), "a list of non-empty strings"),
            ("stop_token_ids", (-1,), "a list of token ids"),
            ("stop_token_ids", (True,), "a list of token ids"),
            ("stop_token_ids", 5, "a list of token ids"),
        ],
    )
    def test_absurd_values(self, field: str, value: object, allowed: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams().override({field: value})
        assert caught.value.param == field
        assert caught.value.message == f"{field} is {value!r}; it must be {allowed}"

    def test_min_above_max(self) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(min_tokens=5, max_tokens=4)
        assert caught.value.message == "min_tokens is 5; it must be at most max_tokens (4)"

    def test_too_many_stops(self) -> None:
        SamplingParams(stop=("x",) * MAX_STOPS)
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(stop=("x",) * (MAX_STOPS + 1))
        assert caught.value.message == "stop has 17 strings; at most 16 are allowed"

    def test_override(self) -> None:
        defaults = SamplingParams(temperature=0.7, top_p=0.9)
        changed = defaults.override({"temperature": 0, "stop": ["a"], "stop_token_ids": [1, 2]})
        assert (changed.temperature, changed.top_p) == (0, 0.9)
        assert (changed.stop, changed.stop_token_ids) == (("a",), (1, 2))
        assert defaults.override({}) == defaults
        with pytest.raises(InvalidRequestError) as caught:
            defaults.override({"heat": 1})
        assert caught.value.param == "heat"
        assert "temperature" in caught.value.message

    @pytest.mark.parametrize(
        "changes",
        [
            {"temperature": 100},
            {"top_p": 1},
            {"seed": 2**64 - 1},
            {"seed": 0},
            {"min_tokens": 4, "max_tokens": 4},
            {"repetition_penalty": 1e-3},
        ],
    )
    def test_edges_are_allowed(self, changes: dict[str, object]) -> None:
        SamplingParams().override(changes)


class TestArithmetic:
    def test_token_ids_across_prompt_and_output(self) -> None:
        request = make_request(1, [1, 2, 3])
        request.output_token_ids = [4, 5, 6]
        tokens = [1, 2, 3, 4, 5, 6]
        for start in range(7):
            for stop in range(start, 7):
                assert request.token_ids(start, stop) == tokens[start:stop]

    def test_gap_chases_known_and_placeholder_tokens(self) -> None:
        request = make_request(1, [1, 2, 3], max_output_tokens=2)
        assert (request.gap, request.is_prefill, request.wants_tokens) == (3, True, True)
        request.num_computed_tokens = 2
        assert (request.gap, request.is_prefill) == (1, True)  # the prompt's last token
        request.num_computed_tokens, request.num_in_flight = 3, 1
        assert (request.gap, request.is_prefill, request.wants_tokens) == (1, False, True)
        request.num_computed_tokens, request.num_in_flight = 4, 2
        assert (request.gap, request.wants_tokens) == (1, False)
        request.output_token_ids, request.num_in_flight = [7], 0
        request.num_computed_tokens = 0
        assert (request.gap, request.is_prefill, request.wants_tokens) == (4, True, True)

    def test_where_the_output_ends(self) -> None:
        sampling = SamplingParams(min_tokens=2, stop_token_ids=(8,))
        request = make_request(
            1, [1], sampling=sampling, eos_token_ids=frozenset({9}), max_output_tokens=3
        )
        request.output_token_ids = [9]
        assert request.ends_at(9) is None
        request.output_token_ids = [1, 8]
        assert request.ends_at(8) is FinishReason.STOP
        assert request.ends_at(9) is FinishReason.STOP
        assert request.ends_at(7) is None
        request.output_token_ids = [1, 1, 1]
        assert request.ends_at(1) is FinishReason.LENGTH
        assert request.ends_at(9) is FinishReason.STOP


def test_timings_before_anything_happened() -> None:
    timings = RequestTimings(5.0)
    values = (timings.queue, timings.prefill, timings.decode, timings.ttft, timings.e2e)
    assert values == (None,) * 5
    assert timings.tpot(3) is None


def test_tpot_while_running_and_after() -> None:
    timings = RequestTimings(0.0, first_token=1.0, last_token=4.0)
    assert timings.tpot(4) == 1.0
    assert timings.tpot(1) is None
    timings.finished = 7.0
    assert timings.tpot(4) == 2.0
