"""Activations, sums, products and gated units against their definitions, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from engine.model.program import activations
from engine.triton import activation as kernels
from engine.triton.elementwise import elementwise
from engine.triton.gated import gated
from tests.support.elementwise import ACTIVATIONS, Case, cases
from tests.support.framed import DEVICE, DTYPES, Framed, in_any_order, numbers, within

# Beyond rounding: the activation's own error, and that of alpha x in its exponent.
RELATIVE = 4e-6
# GELU's 1 + erf(x) and 1 - tanh(x) cancel on the negative side.
ABSOLUTE = 1e-6


def test_no_activation_is_missing() -> None:
    assert set(kernels.ACTIVATIONS) == activations.ACTIVATIONS.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_an_activation_is_right_wherever_it_is_asked(name: str) -> None:
    x = torch.cat([torch.linspace(-90, 90, 4001), torch.linspace(-0.3, 0.3, 1001)])[None].to(DEVICE)
    out = torch.empty_like(x)
    with np.errstate(over="ignore"):  # of the interpreter's exponential, far out
        elementwise(out, x, activation=name)
    expected = ACTIVATIONS[name](x.double())
    within(out, expected, RELATIVE * expected.abs() + ABSOLUTE)


@settings(max_examples=80)
@given(case=cases(DTYPES, 300))
def test_is_its_definition(case: Case) -> None:
    x = Framed(case.rows, case.width, case.dtype, gap=case.gap, seed=1)
    y_rows = 1 if case.one_row else case.rows
    y = Framed(y_rows, case.width, case.dtype, gap=case.gap + 2, seed=2)
    out = x
    if not case.in_place:
        out = Framed(case.rows, case.width, case.dtype, gap=case.gap + 5, frame=7)
    expected, size = case.definition(x.exact, y.exact)
    if case.combine == "multiply":
        size = size + y.exact.abs()  # what cancels is multiplied by y
    given_y = None if case.combine == "none" else y.data[0] if case.one_row else y.data
    with in_any_order(case.width):
        elementwise(out.data, x.data, case.combine, given_y, case.activation, case.alpha)
    within(out.data, expected, RELATIVE * size + ABSOLUTE)
    assert x.keeps_frame()
    assert out.keeps_frame()


def test_long_rows_are_cut() -> None:
    x = Framed(2, 5003, torch.float32, gap=4, seed=1)
    with in_any_order(1):
        elementwise(x.data, x.data, activation="tanh", alpha=1 / 30)
        elementwise(x.data, x.data, "add", x.data, alpha=29.0)
    within(x.data, 30 * torch.tanh(x.exact / 30), 1e-5)
    assert x.keeps_frame()


@pytest.mark.parametrize(("columns", "repeat"), [(1, 37), (5, 3), (4, 16), (2, 3000)])
def test_a_column_may_serve_its_neighbours(columns: int, repeat: int) -> None:
    x, y = (Framed(4, size, torch.bfloat16, gap=3, seed=1) for size in (columns * repeat, columns))
    out = Framed(4, columns * repeat, torch.float32, frame=7)
    with in_any_order(1):
        elementwise(out.data, x.data, "multiply", y.data, alpha=1.5)
    within(out.data, 1.5 * x.exact * y.exact.repeat_interleave(repeat, dim=1), 1e-5)
    assert out.keeps_frame()


def test_what_is_added_may_be_in_another_type() -> None:
    x = Framed(5, 70, torch.float16, seed=1)
    out = Framed(5, 70, torch.float32, frame=7)
    row = numbers(70, seed=2)
    elementwise(out.data, x.data, "add", row)
    within(out.data, x.exact + row.double(), 1e-6)


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    activation=st.sampled_from(kernels.ACTIVATIONS),
    rows=st.integers(0, 9),
    width=st.one_of(st.integers(1, 200), st.just(1100)),
    gap=st.integers(0, 9),
    has_bias=st.booleans(),
)
def test_a_gated_unit_is_its_definition(
    dtype: torch.dtype, activation: str, rows: int, width: int, gap: int, has_bias: bool
) -> None:
    both = Framed(rows, 2 * width, dtype, gap=gap, seed=1)
    out = Framed(rows, width, dtype, gap=gap + 1, frame=7)
    bias = numbers(2 * width, seed=2) if has_bias else None
    with in_any_order(width):
        gated(out.data, both.data, activation, bias)
    gate, up = (both.exact + (0.0 if bias is None else bias.double())).split(width, dim=1)
    expected = ACTIVATIONS[activation](gate) * up
    within(out.data, expected, RELATIVE * expected.abs() + ABSOLUTE * (up.abs() + 1))
    assert out.keeps_frame()
