"""Activations, sums and products against their definitions, and transformers' activations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.activations import ACT2FN

from tests.support.matrices import DTYPES, ROUNDING, Matrix, assert_within
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")

DEFINITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * torch.special.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": lambda x: x.clamp_min(0),
    "relu2": lambda x: x.clamp_min(0) ** 2,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
}
# Beyond rounding: the activation's own error, that of alpha x in its exponent, and that of the
# product with y.
RELATIVE = 3e-6


def definition(
    combine: str, activation: str, x: Tensor, y: Tensor | None, alpha: float
) -> tuple[Tensor, Tensor]:
    """The exact result in float64, and the size of what was added to make it."""
    if combine == "none":
        result = DEFINITIONS[activation](alpha * x)
        return result, result.abs()
    assert y is not None
    if combine == "add":
        return x + alpha * y, x.abs() + (alpha * y).abs()
    result = DEFINITIONS[activation](x) * y * alpha
    return result, result.abs()


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    combine=st.sampled_from(("none", "add", "multiply")),
    activation=st.sampled_from(tuple(DEFINITIONS)),
    rows=st.integers(0, 9),
    width=st.integers(1, 150),
    gap=st.integers(0, 20),
    alpha=st.sampled_from((1.0, 0.5, -2.0)),
    one_row=st.booleans(),
    in_place=st.booleans(),
)
def test_is_its_definition(
    dtype: torch.dtype,
    combine: str,
    activation: str,
    rows: int,
    width: int,
    gap: int,
    alpha: float,
    one_row: bool,
    in_place: bool,
) -> None:
    x = Matrix(rows, width, dtype, gap, 1)
    x.data.mul_(2)
    y = None if combine == "none" else Matrix(1 if one_row else rows, width, dtype, gap + 2, 2)
    if combine == "add":
        activation = "none"
    out = x if in_place else Matrix(rows, width, dtype, gap + 5, 3)
    expected, size = definition(combine, activation, x.exact, y.exact if y else None, alpha)

    given_y = y.data[0] if y is not None and one_row else y.data if y is not None else None
    native.elementwise(out.data, x.data, combine, given_y, activation, alpha)

    assert_within(out.data, expected, ROUNDING[dtype] * expected.abs() + RELATIVE * size + 1e-37)
    assert x.keeps_rest()
    assert out.keeps_rest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("silu", "silu"),
        ("gelu", "gelu"),
        ("gelu_tanh", "gelu_pytorch_tanh"),
        ("quick_gelu", "quick_gelu"),
        ("relu", "relu"),
        ("relu2", "relu2"),
        ("tanh", "tanh"),
        ("sigmoid", "sigmoid"),
    ],
)
def test_is_transformers(dtype: torch.dtype, ours: str, theirs: str) -> None:
    x = torch.linspace(-8, 8, 1001).to(dtype)[None]
    out = torch.empty_like(x)
    native.elementwise(out, x, activation=ours)
    expected = ACT2FN[theirs](x).double()
    # Theirs rounds 1.702 x, its sigmoid and the product: of 8 at most, in quick_gelu's exponent.
    bound = 16 * ROUNDING[dtype] * expected.abs() + 1e-6
    assert_within(out, expected, bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("combine", ["add", "multiply"])
@pytest.mark.parametrize(
    ("columns", "repeat"), [(1, 37), (5, 3), (9, 5), (4, 16), (3, 40), (2, 20_000)]
)
def test_a_column_may_serve_its_neighbours(
    columns: int, repeat: int, combine: str, dtype: torch.dtype
) -> None:
    x, y = Matrix(5, columns * repeat, dtype, 3, 1), Matrix(5, columns, dtype, 2, 2)
    out = Matrix(5, columns * repeat, dtype, 5, 3)
    each = y.exact.repeat_interleave(repeat, dim=1)
    expected, size = definition(combine, "none", x.exact, each, 1.5)
    native.elementwise(out.data, x.data, combine, y.data, "none", 1.5)
    assert_within(out.data, expected, ROUNDING[dtype] * expected.abs() + RELATIVE * size)
    assert out.keeps_rest()


@pytest.mark.parametrize(("rows", "width"), [(2, 50_001), (301, 897)])
@pytest.mark.parametrize("one_row", [False, True])
def test_many_pieces_are_one_result(rows: int, width: int, one_row: bool) -> None:
    """Long rows are cut too."""
    x = Matrix(rows, width, torch.bfloat16, 3, 1)
    y = Matrix(1 if one_row else rows, width, torch.bfloat16, 0, 2)
    out = Matrix(rows, width, torch.bfloat16, 1, 3)
    before = native.threads()
    native.set_threads(3)
    try:
        native.elementwise(out.data, x.data, "add", y.data[0] if one_row else y.data)
    finally:
        native.set_threads(before)
    assert torch.equal(out.data, x.data + y.data)
    assert out.keeps_rest()


@pytest.mark.parametrize("shape", [(0, 0), (1, 0), (3, 0), (0, 5)])
def test_nothing_is_computed_of_nothing(shape: tuple[int, int]) -> None:
    x = torch.zeros(*shape)
    native.elementwise(x, x)
    native.elementwise(torch.zeros(*shape), x, "add", x)


def test_reads_a_row_that_stands_for_many() -> None:
    x = torch.randn(1, 40).expand(6, -1)
    out = torch.zeros(6, 40)
    native.elementwise(out, x, "add", x)
    assert torch.equal(out, 2 * x)


def test_refuses_by_name() -> None:
    x = torch.zeros(4, 12)
    out = torch.zeros(4, 12)

    def refusal(*args: object, **kwargs: object) -> str:
        with pytest.raises(ValueError, match=r"\w+ (is|has|must|overlaps)") as caught:
            native.elementwise(*args, **kwargs)
        return str(caught.value)

    assert refusal(out, x, "subtract").startswith("combine ")
    assert refusal(out, x, activation="swish").startswith("activation ")
    assert refusal(out, x, "add").startswith("y ")
    assert refusal(out, x, "none", x).startswith("y ")
    assert refusal(out, x, "add", x, "silu").startswith("activation ")
    assert refusal(out, x, "add", torch.zeros(11)).startswith("y ")
    assert refusal(out, x, "add", torch.zeros(12).bfloat16()).startswith("y ")
    assert refusal(out, x, "add", x[:3]).startswith("y ")
    assert refusal(out[:, :11], x).startswith("out ")
    assert refusal(out[:1].expand(4, -1), x[:1].expand(4, -1)) == (
        "out has rows that lie on each other"
    )
    assert refusal(out, x.numpy()[::-1]) == "x has rows in reverse order"
