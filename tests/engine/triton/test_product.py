"""Products of few rows against their definition, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from engine.triton.product import MOST_ROWS, Normed, Strip, product, strips
from tests.support.elementwise import ACTIVATIONS
from tests.support.framed import DEVICE, DTYPES, LEAST, ROUNDING, Framed, in_any_order, numbers

# SiLU's exponential, far out.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")

EPS = 1e-5


def check(
    dtype: torch.dtype,
    strip: Strip,
    rows: int,
    width: int,
    columns: int,
    *,
    gap: int = 0,
    has_norm: bool = False,
    has_scales: bool = True,
    has_bias: bool = False,
    activation: str = "none",
    is_gated: bool = False,
    has_residual: bool = False,
    in_place: bool = False,
    in_float32: bool = False,
    alpha: float = 1.0,
) -> None:
    lines = columns * (2 if is_gated else 1)
    x = Framed(rows, width, dtype, gap=gap, seed=1)
    weight = Framed(lines, width, dtype, seed=2)
    out_type = torch.float32 if in_float32 else dtype
    out = Framed(rows, columns, out_type, gap=gap + 2, seed=3, frame=7)
    residual = None
    if has_residual:
        residual = out if in_place else Framed(rows, columns, dtype, gap=gap, seed=4)
    added = 0.0 if residual is None else residual.data.double()
    bias = numbers(lines, seed=5) if has_bias else None
    scales = numbers(width, seed=6) if has_scales else None
    with in_any_order(rows):
        product(
            out.data,
            x.data,
            weight.data,
            strip,
            norm=Normed(scales, EPS) if has_norm else None,
            bias=bias,
            activation=activation,
            is_gated=is_gated,
            residual=None if residual is None else residual.data,
            alpha=alpha,
        )
    given, size = x.exact, x.exact.abs()
    if has_norm:
        divisor = torch.rsqrt(given.square().mean(-1, keepdim=True) + EPS)
        given = given * divisor * (1.0 if scales is None else scales.double())
        size = given.abs()
    result, terms = given @ weight.exact.T, size @ weight.exact.abs().T
    if bias is not None:
        result, terms = result + bias.double(), terms + bias.double().abs()
    # The normalized row is rounded to its type before it is multiplied, as a norm's result is.
    error = terms * (4e-6 + (ROUNDING[dtype] if has_norm else 0.0))
    if is_gated:
        gate, up = result.chunk(2, -1)
        result = ACTIVATIONS[activation](gate) * up
        # No activation here is steeper than 1.2.
        off, beside = error.chunk(2, -1)
        error = 1.2 * off * up.abs() + (ACTIVATIONS[activation](gate).abs() + off) * beside
    else:
        result, error = ACTIVATIONS[activation](result), 1.2 * error
    result, error = alpha * result + added, abs(alpha) * error
    excess = (out.data.double() - result).abs() - error - ROUNDING[out_type] * result.abs()
    # GELU's cancellation, as for the kernels beside this one.
    assert bool((excess <= LEAST + 1e-6 * (1 + error.abs())).all()), f"{excess.max():.3g} too much"
    assert out.keeps_frame()


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    strip=st.sampled_from((Strip(16, 32, 4, 2), Strip(32, 64, 4, 3))),
    rows=st.integers(1, MOST_ROWS),
    width=st.integers(1, 150),
    columns=st.integers(1, 70),
    gap=st.integers(0, 9),
    has_norm=st.booleans(),
    has_scales=st.booleans(),
    has_bias=st.booleans(),
    activation=st.sampled_from(("none", "silu", "gelu_tanh", "relu")),
    is_gated=st.booleans(),
    has_residual=st.booleans(),
    in_place=st.booleans(),
    alpha=st.sampled_from((1.0, 0.5)),
)
def test_few_rows_are_their_definition(
    dtype: torch.dtype, strip: Strip, rows: int, width: int, columns: int, **options: bool
) -> None:
    check(dtype, strip, rows, width, columns, **options)


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(DTYPES),
    strip=st.sampled_from((Strip(4, 64, 4, 1), Strip(8, 32, 4, 1))),
    width=st.integers(1, 150),
    columns=st.integers(1, 30),
    has_norm=st.booleans(),
    has_scales=st.booleans(),
    has_bias=st.booleans(),
    activation=st.sampled_from(("none", "silu", "gelu_tanh", "relu")),
    is_gated=st.booleans(),
    has_residual=st.booleans(),
    in_place=st.booleans(),
    in_float32=st.booleans(),
)
def test_one_row_is_its_definition(
    dtype: torch.dtype, strip: Strip, width: int, columns: int, **options: bool
) -> None:
    check(dtype, strip, 1, width, columns, **options)


@pytest.mark.parametrize("rows", [1, 5])
def test_each_strip_that_is_tried_is_right(rows: int) -> None:
    for strip in strips(rows):
        check(torch.float32, strip, rows, 2100, 66, has_norm=True, is_gated=True, activation="silu")


def test_a_row_does_not_depend_on_the_others() -> None:
    x = numbers(6, 100)
    weight = numbers(40, 100, seed=1)
    strip = Strip(16, 32, 4, 2)
    alone, beside = (torch.empty(rows, 40, device=DEVICE) for rows in (1, 6))
    product(alone, x[2:3], weight, strip, norm=Normed(None, EPS))
    x[3] = torch.nan
    product(beside, x, weight, strip, norm=Normed(None, EPS))
    assert torch.equal(alone[0], beside[2])
    assert bool(beside[3].isnan().all())
