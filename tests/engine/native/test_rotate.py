"""Rotary position embedding against its definition, and against transformers' functions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.cohere.modeling_cohere import (
    apply_rotary_pos_emb as rotate_neighbours,
)
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_halves

from tests.support.matrices import DTYPES, ROUNDING, Matrix, assert_within
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")
POSITIONS = 50


def angles(half: int) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [positions, half]."""
    turns = torch.outer(torch.arange(POSITIONS), 10000.0 ** -(torch.arange(half) / half))
    return turns.cos().float(), turns.sin().float()


def positions_of(rows: int) -> Tensor:
    return (torch.arange(rows) * 7 + 3) % POSITIONS


def definition(
    x: Tensor, heads: int, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """The exact result in float64, and the size of what was added to make it."""
    rows, columns = x.shape
    half = cos.shape[1]
    result = x.reshape(rows, heads, columns // heads).clone()
    size = torch.zeros_like(result)
    order = torch.arange(2 * half)
    first, second = (order[0::2], order[1::2]) if interleaved else (order[:half], order[half:])
    c = cos.double()[positions_of(rows)][:, None]
    s = sin.double()[positions_of(rows)][:, None]
    a, b = result[..., first], result[..., second]
    result[..., first], size[..., first] = a * c - b * s, (a * c).abs() + (b * s).abs()
    result[..., second], size[..., second] = b * c + a * s, (b * c).abs() + (a * s).abs()
    return result.reshape(rows, columns), size.reshape(rows, columns)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 9),
    heads=st.integers(1, 5),
    half=st.integers(1, 70),
    rest=st.integers(0, 20),
    gap=st.integers(0, 20),
    interleaved=st.booleans(),
)
def test_is_its_definition(
    dtype: torch.dtype, rows: int, heads: int, half: int, rest: int, gap: int, interleaved: bool
) -> None:
    x = Matrix(rows, heads * (2 * half + rest), dtype, gap)
    before = x.exact
    cos, sin = angles(half)
    expected, size = definition(before, heads, cos, sin, interleaved)

    native.rotate(x.data, heads, positions_of(rows), cos, sin, interleaved)

    assert_within(x.data, expected, ROUNDING[dtype] * expected.abs() + 2.0**-22 * size)
    by_head = (rows, heads, 2 * half + rest)
    passed = x.exact.reshape(by_head)[..., 2 * half :]
    assert torch.equal(passed, before.reshape(by_head)[..., 2 * half :])
    assert x.keeps_rest()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_pieces_are_one_result(dtype: torch.dtype, interleaved: bool) -> None:
    x = Matrix(301, 14 * 64, dtype, 3)
    cos, sin = angles(32)
    expected, size = definition(x.exact, 14, cos, sin, interleaved)
    before = native.threads()
    native.set_threads(3)
    try:
        native.rotate(x.data, 14, positions_of(301), cos, sin, interleaved)
    finally:
        native.set_threads(before)
    assert_within(x.data, expected, ROUNDING[dtype] * expected.abs() + 2.0**-22 * size)
    assert x.keeps_rest()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_transformers(dtype: torch.dtype, interleaved: bool) -> None:
    rows, heads, head_dim = 33, 14, 64
    x = Matrix(rows, heads * head_dim, dtype)
    cos, sin = (table.to(dtype).float() for table in angles(head_dim // 2))
    _, size = definition(x.exact, heads, cos, sin, interleaved)
    query = x.data.clone().view(1, rows, heads, head_dim).transpose(1, 2)
    theirs = rotate_neighbours if interleaved else rotate_halves

    def doubled(table: Tensor) -> Tensor:
        chosen = table[positions_of(rows)][None].to(dtype)
        if interleaved:
            return chosen.repeat_interleave(2, dim=-1)
        return torch.cat((chosen, chosen), dim=-1)

    expected, _ = theirs(query, query, doubled(cos), doubled(sin))
    native.rotate(x.data, heads, positions_of(rows), cos, sin, interleaved)

    flat = expected.transpose(1, 2).reshape(rows, heads * head_dim).double()
    # Theirs rounds both products, and their sum.
    assert_within(x.data, flat, 4 * ROUNDING[dtype] * size)


def test_refuses_by_name() -> None:
    x = torch.zeros(4, 12)
    at = torch.arange(4)
    cos, sin = angles(3)

    def refusal(*args: object) -> str:
        with pytest.raises(ValueError, match=r"\w+ (is|has|must)") as caught:
            native.rotate(*args)
        return str(caught.value)

    assert refusal(x, 5, at, cos, sin).startswith("heads ")
    assert refusal(x, 4, at, cos, sin).startswith("cos ")
    assert refusal(x, 2, at, cos, sin[:, :2]).startswith("sin ")
    assert refusal(x, 2, at, cos.bfloat16(), sin.bfloat16()).startswith("cos ")
    assert refusal(x, 2, at[:3], cos, sin).startswith("positions ")
    assert refusal(x, 2, at.int(), cos, sin).startswith("positions ")
    assert refusal(x, 2, at + POSITIONS - 3, cos, sin) == (
        f"positions has {POSITIONS} at 3, which is not in [0, {POSITIONS})"
    )
    assert refusal(x, 2, at - 1, cos, sin).startswith("positions has -1 at 0")
    assert refusal(x[:1].expand(4, -1), 2, at, cos, sin).startswith("x has rows that lie on")
    wide = torch.zeros(POSITIONS, 4)
    assert refusal(x, 2, at, wide[:, :3], wide[:, :3]).startswith("cos ")
