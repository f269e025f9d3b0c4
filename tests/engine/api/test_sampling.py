"""Sampling parameters: what each may be, and the sentence that refuses what it may not."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from engine.api.errors import InvalidRequestError
from engine.api.sampling import (
    MAX_BIASES,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    RESERVED_ARGUMENTS,
    SamplingParams,
)


class TestSamplingParams:
    @pytest.mark.parametrize(
        ("field", "value", "allowed"),
        [
            ("temperature", -0.1, "a number from 0 to 100"),
            ("temperature", math.nan, "a number from 0 to 100"),
            ("temperature", math.inf, "a number from 0 to 100"),
            ("temperature", 10**400, "a number from 0 to 100"),
            ("temperature", "hot", "a number from 0 to 100"),
            ("temperature", True, "a number from 0 to 100"),
            ("temperature", None, "a number from 0 to 100"),
            ("top_p", 0.0, "a number above 0 and at most 1"),
            ("top_p", 1.01, "a number above 0 and at most 1"),
            ("min_p", -1e-9, "a number from 0 to 1"),
            ("repetition_penalty", 0, "a number above 0 and at most 100"),
            ("presence_penalty", 2.5, "a number from -2 to 2"),
            ("frequency_penalty", -2.5, "a number from -2 to 2"),
            ("top_k", -2, "an integer from 0 to 2147483647"),
            ("top_k", 1.5, "an integer from 0 to 2147483647"),
            ("top_k", 2**31, "an integer from 0 to 2147483647"),
            ("min_tokens", -1, "an integer from 0 to 2147483647"),
            ("seed", -2, "an integer from 0 to 18446744073709551615"),
            ("seed", 2**64, "an integer from 0 to 18446744073709551615"),
            ("max_tokens", -2, "an integer from 1 to 2147483647"),
            ("max_tokens", 1e300, "an integer from 1 to 2147483647"),
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
            ("logprobs", -1, "an integer from 0 to 20"),
            ("logprobs", 21, "an integer from 0 to 20"),
            ("logprobs", True, "an integer from 0 to 20"),
            ("prompt_logprobs", 21, "an integer from 0 to 20"),
            ("logit_bias", None, "a map of token ids to numbers"),
            ("logit_bias", "5", "a map of token ids to numbers"),
            ("logit_bias", ((5, 1, 1),), "a map of token ids to numbers"),
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

    def test_stops_that_are_too_long_together(self) -> None:
        SamplingParams(stop=("é" * 4096, "x" * 8192))
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(stop=("é" * 4096, "x" * 8193))
        assert caught.value.message == "stop has 16385 bytes in all; at most 16384 are allowed"
        assert caught.value.param == "stop"

    def test_what_replies_to_one_request_differ_in(self) -> None:
        first = SamplingParams(seed=1, prompt_logprobs=3, stop=("x",), temperature=0.5)
        other = first.of_sibling(seed=2, prompt_logprobs=None)
        assert other == SamplingParams(seed=2, stop=("x",), temperature=0.5)
        assert first.seed == 1
        with pytest.raises(InvalidRequestError, match="seed is -1"):
            first.of_sibling(seed=-1, prompt_logprobs=None)
        with pytest.raises(InvalidRequestError, match="prompt_logprobs is 21"):
            first.of_sibling(seed=1, prompt_logprobs=21)
        with pytest.raises(InvalidRequestError, match="max_tokens is 0"):
            replace(first, max_tokens=0).of_sibling(seed=1, prompt_logprobs=None)

    def test_too_many_stop_tokens(self) -> None:
        SamplingParams(stop_token_ids=tuple(range(MAX_STOP_TOKENS)))
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(stop_token_ids=tuple(range(MAX_STOP_TOKENS + 1)))
        assert caught.value.message == "stop_token_ids has 1025 entries; at most 1024 are allowed"
        assert caught.value.param == "stop_token_ids"

    @pytest.mark.parametrize(
        ("bias", "message"),
        [
            ({5: 100.1}, "logit_bias of token id 5 is 100.1; it must be a number from -100 to 100"),
            ({5: -101}, "logit_bias of token id 5 is -101; it must be a number from -100 to 100"),
            (
                {5: math.nan},
                "logit_bias of token id 5 is nan; it must be a number from -100 to 100",
            ),
            ({5: True}, "logit_bias of token id 5 is True; it must be a number from -100 to 100"),
            ({5: "1"}, "logit_bias of token id 5 is '1'; it must be a number from -100 to 100"),
            ({-5: 1}, "logit_bias has the key -5; it must be a token id"),
            ({"-5": 1}, "logit_bias has the key '-5'; it must be a token id"),
            ({"the": 1}, "logit_bias has the key 'the'; it must be a token id"),
            ({"\u0663": 1}, "logit_bias has the key '\u0663'; it must be a token id"),
            (
                {"9" * 5000: 1},
                "logit_bias has the key '999999999999...9999999999999'; it must be a token id",
            ),
            ({"5": 1, "05": 2}, "logit_bias names token id 5 twice; once is allowed"),
            (
                dict.fromkeys(range(MAX_BIASES + 1), 1),
                "logit_bias has 1025 entries; at most 1024 are allowed",
            ),
        ],
    )
    def test_absurd_biases(self, bias: dict[object, object], message: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams().override({"logit_bias": bias})
        assert (caught.value.message, caught.value.param) == (message, "logit_bias")

    def test_a_bias_is_kept_immutable_and_its_keys_may_be_strings(self) -> None:
        given = {"123": -100, 7: 0.5}
        params = SamplingParams().override({"logit_bias": given, "logprobs": 0})
        given["123"] = 5
        assert params.logit_bias == ((123, -100), (7, 0.5))
        assert params == SamplingParams(logit_bias=((123, -100), (7, 0.5)), logprobs=0)
        assert hash(params) != hash(SamplingParams())
        assert params.override({"logit_bias": {}}).logit_bias == ()
        assert params.override({"top_k": 1}).logit_bias == params.logit_bias

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
            {"logprobs": 20},
            {"prompt_logprobs": 0, "max_tokens": 0},
            {"logit_bias": {"0": 100, "1": -100.0}},
            {"logit_bias": dict.fromkeys(range(MAX_BIASES), 0)},
        ],
    )
    def test_edges_are_allowed(self, changes: dict[str, object]) -> None:
        SamplingParams().override(changes)


class TestTemplateArguments:
    def test_they_are_kept_as_stated(self) -> None:
        stated = {"enable_thinking": False, "documents": [{"text": "f"}], "reasoning_effort": "low"}
        params = SamplingParams().override({"chat_template_kwargs": stated})
        assert params.chat_template_kwargs == stated
        assert params.override({"chat_template_kwargs": {}}).chat_template_kwargs == {}

    @pytest.mark.parametrize(
        ("stated", "reason"),
        [
            ([], "must be a map of names to values"),
            ({"": 1}, "must be a map of names to values"),
            ({"a b": 1}, "must be a map of names to values"),
            ({1: 1}, "must be a map of names to values"),
            ({"chat_template": "{{ 1 }}"}, "has 'chat_template', which cannot be an argument"),
            ({"a": 1, "tokenize": True}, "has 'tokenize', which cannot be an argument"),
            ({"a": object()}, "must have values as JSON has them"),
            ({"a": "\ud800"}, "must have values as JSON has them"),
            ({"tools": []}, "has 'tools', which is a field of its own"),
        ],
    )
    def test_others_are_refused(self, stated: object, reason: str) -> None:
        with pytest.raises(InvalidRequestError, match=reason) as caught:
            SamplingParams().override({"chat_template_kwargs": stated})
        assert caught.value.param == "chat_template_kwargs"

    def test_too_many_are_refused(self) -> None:
        SamplingParams(chat_template_kwargs={"a": "x" * (2**18 - 9)})
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(chat_template_kwargs={"a": "x" * (2**18 - 8)})
        assert caught.value.message == (
            "chat_template_kwargs has 262145 bytes as JSON; at most 262144 are allowed"
        )

    def test_all_that_transformers_takes_for_itself_is_refused(self) -> None:
        taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
        mine = {"self", "tools", "documents", "kwargs"}
        assert taken.keys() - mine <= RESERVED_ARGUMENTS
