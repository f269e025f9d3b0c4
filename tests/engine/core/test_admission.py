"""Admission: the requests that can be served at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.config import EngineConfig
from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams
from engine.core.admission import check_vocabulary, max_output_tokens


@given(
    num_blocks=st.integers(1, 20),
    block_size=st.integers(1, 16),
    max_model_len=st.integers(1, 200),
    prompt=st.integers(0, 250),
    max_tokens=st.none() | st.integers(1, 250),
    min_tokens=st.integers(0, 250),
)
def test_what_is_admitted_fits_and_what_fits_is_admitted(
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    prompt: int,
    max_tokens: int | None,
    min_tokens: int,
) -> None:
    config = EngineConfig(num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len)
    if max_tokens is not None:
        min_tokens = min(min_tokens, max_tokens)
    sampling = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)
    limit = min(max_model_len, num_blocks * block_size)
    fits = prompt > 0 and prompt + max(1, max_tokens or min_tokens) <= limit
    if not fits:
        with pytest.raises(InvalidRequestError) as caught:
            max_output_tokens(config, prompt, sampling)
        assert caught.value.param in ("prompt", "max_tokens", "min_tokens")
        return
    output = max_output_tokens(config, prompt, sampling)
    assert output == (limit - prompt if max_tokens is None else max_tokens)
    assert config.blocks_for(prompt + output) <= num_blocks
    assert prompt + output <= max_model_len


def test_what_does_not_fit_may_be_cut() -> None:
    config = EngineConfig(num_blocks=10, block_size=4, max_model_len=40)
    for stated, most in ((100, 30), (31, 30), (30, 30), (2, 2), (None, 30)):
        sampling = SamplingParams(max_tokens=stated)
        assert max_output_tokens(config, 10, sampling, trims=True) == most
    with pytest.raises(InvalidRequestError, match=r"max_tokens is 31; .* at most 30 are allowed"):
        max_output_tokens(config, 10, SamplingParams(max_tokens=31))
    with pytest.raises(InvalidRequestError, match="the prompt is too long: 40 tokens > 39 "):
        max_output_tokens(config, 40, SamplingParams(max_tokens=1), trims=True)


@pytest.mark.parametrize(("ids", "wrong"), [([3, 10, 1], 10), ([-1, 3], -1)])
def test_ids_that_the_model_has_no_row_for(ids: list[int], wrong: int) -> None:
    check_vocabulary([0, 9], 10)
    check_vocabulary([], 10)
    with pytest.raises(InvalidRequestError, match=f"token id {wrong}; the model's are 0 to 9"):
        check_vocabulary(ids, 10)


def test_the_field_with_such_an_id_is_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_vocabulary([3, 10], 10, "logit_bias")
    assert caught.value.message == "logit_bias has token id 10; the model's are 0 to 9"
    assert caught.value.param == "logit_bias"
