"""Activations, sums and products against their definitions, and transformers' activations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from transformers.activations import ACT2FN

from tests.support.elementwise import Case, cases
from tests.support.matrices import DTYPES, ROUNDING, Matrix, assert_within
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")

# Beyond rounding: the activation's own error, that of alpha x in its exponent, and that of the
# product with y.
RELATIVE = 3e-6


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(DTYPES, 150))
def test_is_its_definition(case: Case) -> None:
    x = Matrix(case.rows, case.width, case.dtype, case.gap, 1)
    x.data.mul_(2)
    y = Matrix(1 if case.one_row else case.rows, case.width, case.dtype, case.gap + 2, 2)
    out = x if case.in_place else Matrix(case.rows, case.width, case.dtype, case.gap + 5, 3)
    expected, size = case.definition(x.exact, y.exact)

    given_y = None if case.combine == "none" else y.data[0] if case.one_row else y.data
    native.elementwise(out.data, x.data, case.combine, given_y, case.activation, case.alpha)

    bound = ROUNDING[case.dtype] * expected.abs() + RELATIVE * size + 1e-37
    assert_within(out.data, expected, bound)
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
    scaled = 1.5 * each
    expected = x.exact + scaled if combine == "add" else x.exact * scaled
    size = x.exact.abs() + scaled.abs() if combine == "add" else expected.abs()
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
