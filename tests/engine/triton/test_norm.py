"""RMSNorm and LayerNorm against their definitions, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from engine.triton.norm import norm
from tests.support.framed import DTYPES, Framed, in_any_order, numbers, within

# The error of a sum in float32, and that of the root.
RELATIVE = 2e-6


def check(
    dtype: torch.dtype,
    rows: int,
    width: int,
    *,
    groups: int = 1,
    gap: int = 0,
    center: bool = False,
    has_weight: bool = True,
    has_bias: bool = False,
    in_place: bool = False,
    mean: float = 0.0,
) -> None:
    x = Framed(rows, groups * width, dtype, gap=gap, seed=rows)
    x.data.add_(mean)
    exact = x.data.double().reshape(rows, groups, width)
    weight = numbers(width, seed=1) if has_weight else None
    bias = numbers(width, seed=2) if has_bias else None
    out = x if in_place else Framed(rows, groups * width, dtype, gap=gap + 3, frame=7)
    with in_any_order(rows):
        norm(out.data, x.data, groups, weight, bias, 1e-5, center)
    moved = exact - exact.mean(-1, keepdim=True) if center else exact
    expected = moved * torch.rsqrt(moved.square().mean(-1, keepdim=True) + 1e-5)
    if weight is not None:
        expected = expected * weight.double()
    # Next to a large mean the differences have fewer digits.
    bound = (RELATIVE + abs(mean) * 2.0**-22) * (expected.abs() + 1)
    if bias is not None:
        expected = expected + bias.double()
    within(out.data, expected.flatten(1), bound.flatten(1))
    assert x.keeps_frame()
    assert out.keeps_frame()


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 9),
    groups=st.sampled_from((1, 1, 2, 5, 8)),
    width=st.integers(1, 300),
    gap=st.integers(0, 9),
    center=st.booleans(),
    has_weight=st.booleans(),
    has_bias=st.booleans(),
    in_place=st.booleans(),
)
def test_is_its_definition(dtype: torch.dtype, rows: int, width: int, **options: bool) -> None:
    check(dtype, rows, width, **options)


@pytest.mark.parametrize("width", [1536, 5120, 16384, 18432])
@pytest.mark.parametrize("center", [False, True])
def test_wide_rows_are_normalized_whole(width: int, center: bool) -> None:
    check(torch.float32, 2, width, center=center, has_bias=center)


def test_a_large_mean_is_taken_off_before_the_squares() -> None:
    check(torch.float32, 3, 1000, center=True, mean=100.0)
