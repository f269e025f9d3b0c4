"""The product with packed weights against float64, at the edges of its blocks and of its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.support.elementwise import ACTIVATIONS
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")
every_level = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Half a unit in the last place, relative.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
# Rows about those of a tile, of two, of a register block of every level, and of a piece.
ROWS = st.one_of(st.integers(0, 40), st.sampled_from((64, 255, 256, 257, 300)))
# Features about those of a tile and of a chunk.
DEPTHS = st.one_of(st.integers(1, 100), st.sampled_from((511, 512, 513, 1100)))
WIDTHS = st.integers(1, 140)
GUARD = 7.0
BF16 = torch.bfloat16
DTYPES = (BF16, torch.float32)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = native.threads()
    native.set_threads(2)
    yield
    native.set_threads(before)


def numbers(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(dtype)


def guarded(rows: int, width: int, gap: int, dtype: torch.dtype, fill: float) -> Tensor:
    """[rows, width] within memory full of `fill`, before, between and after the rows."""
    return torch.full((rows + 2, width + 2 * gap), fill, dtype=dtype)[1 : rows + 1, gap:][:, :width]


def is_kept(view: Tensor, fill: float) -> bool:
    """Whether all of a guarded matrix's memory beside it is as it was."""
    assert view._base is not None
    whole = view._base.clone()
    rows, width = view.shape
    gap = (whole.shape[1] - width) // 2
    whole[1 : rows + 1, gap : gap + width] = fill
    return bool((whole == fill).all())


def padded(x: Tensor, gap: int) -> Tensor:
    """x with as many columns as are read, finite ones, among NaN that must not be."""
    rows, k = x.shape
    width = math.ceil(k / 32) * 32 if x.dtype == torch.bfloat16 else k
    result = guarded(rows, width, gap, x.dtype, math.nan)
    result[:] = 3.0
    result[:, :k] = x
    return result


def pack(weight: Tensor) -> Tensor:
    packed = torch.full((native.packed_size(*weight.shape),), math.nan, dtype=weight.dtype)
    native.pack_linear(weight, packed)
    return packed


@dataclass(frozen=True)
class Case:
    """x W^T + bias in float64, and how far sums in float32 may be from it."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    exact: Tensor
    slack: Tensor

    @classmethod
    def make(cls, m: int, n: int, k: int, dtype: torch.dtype, biased: bool, seed: int) -> Case:
        x = numbers(m, k, dtype, seed)
        weight = numbers(n, k, dtype, seed + 1) / math.sqrt(k)
        bias = numbers(1, n, torch.float32, seed + 2)[0] if biased else None
        x64, w64 = x.double(), weight.double()
        exact = x64 @ w64.T
        size = x64.abs() @ w64.abs().T
        if bias is not None:
            exact, size = exact + bias.double(), size + bias.double().abs()
        # One rounding a feature at most, one for the bias (Higham, "Accuracy and Stability of
        # Numerical Algorithms", 3.1).
        return cls(x, weight, bias, exact, (k + 2) * 2.0**-24 * size)


def assert_close(out: Tensor, exact: Tensor, slack: Tensor) -> None:
    rounding = ROUNDING[out.dtype] * (exact.abs() + slack)
    worse = (out.double() - exact).abs() > slack + rounding * 1.01 + 1e-30
    assert not worse.any(), (out.double() - exact)[worse][:4]


@every_level
@given(
    m=ROWS,
    n=WIDTHS,
    k=DEPTHS,
    dtype=st.sampled_from(DTYPES),
    wide=st.booleans(),
    biased=st.booleans(),
    gap=st.integers(0, 40),
    epilogue=st.sampled_from((*ACTIVATIONS, "residual", "in place")),
    seed=st.integers(0, 2**20),
)
def test_is_the_product(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    wide: bool,
    biased: bool,
    gap: int,
    epilogue: str,
    seed: int,
) -> None:
    case = Case.make(m, n, k, dtype, biased, seed)
    out_dtype = torch.float32 if wide and epilogue != "in place" else dtype
    out = guarded(m, n, gap, out_dtype, GUARD)
    x, packed = padded(case.x, gap), pack(case.weight)
    if epilogue in ("residual", "in place"):
        added = numbers(m, n, dtype, seed + 3)
        residual = out if epilogue == "in place" else guarded(m, n, gap, dtype, math.nan)
        residual[:] = added
        native.linear(out, x, packed, n, k, case.bias, residual=residual, alpha=0.375)
        exact = added.double() + 0.375 * case.exact
        slack = 0.375 * case.slack + 2.0**-24 * (added.abs() + case.exact.abs())
    else:
        native.linear(out, x, packed, n, k, case.bias, activation=epilogue)
        exact = ACTIVATIONS[epilogue](case.exact)
        # No activation is steeper than this; exp's argument, where there is one, is rounded.
        steep = 2 * case.exact.abs() + 1 if epilogue == "relu2" else 1.2
        slack = steep * case.slack
        if epilogue != "none":
            slack = slack + 4e-7 * exact.abs() + 4e-7
    assert_close(out, exact, slack)
    assert is_kept(out, GUARD)


@every_level
@given(
    m=ROWS,
    panels=st.integers(1, 4),
    k=DEPTHS,
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    activation=st.sampled_from(("none", "silu", "gelu", "gelu_tanh")),
    seed=st.integers(0, 2**20),
)
def test_gates_multiply_their_ups(
    m: int,
    panels: int,
    k: int,
    dtype: torch.dtype,
    biased: bool,
    activation: str,
    seed: int,
) -> None:
    n = 32 * panels
    case = Case.make(m, n, k, dtype, biased, seed)
    out = guarded(m, n // 2, 5, dtype, GUARD)
    native.linear(out, padded(case.x, 5), pack(case.weight), n, k, case.bias, True, activation)
    gate, up = case.exact.view(m, panels, 2, 16).unbind(2)
    gate_slack, up_slack = case.slack.view(m, panels, 2, 16).unbind(2)
    gate = ACTIVATIONS[activation](gate)
    gate_slack = 1.2 * gate_slack + 4e-7 * gate.abs() + 4e-7
    slack = gate_slack * (up.abs() + up_slack) + gate.abs() * up_slack
    slack = slack + 2.0**-24 * (gate * up).abs()
    assert_close(out, (gate * up).reshape(m, n // 2), slack.reshape(m, n // 2))
    assert is_kept(out, GUARD)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_whatever_is_beside_it_and_whoever_computes(dtype: torch.dtype) -> None:
    m, n, k = 300, 200, 1100
    case = Case.make(m, n, k, dtype, True, 1)
    x, packed = padded(case.x, 0), pack(case.weight)
    results = []
    for threads, rows in ((1, m), (2, m), (3, m), (2, 1), (2, 5), (1, 20), (3, 40)):
        native.set_threads(threads)
        out = torch.empty(rows, n)
        native.linear(out, x[:rows], packed, n, k, case.bias)
        results.append(out)
    for out in results[1:]:
        assert torch.equal(out, results[0][: len(out)])


@pytest.mark.parametrize("n", [1, 16, 31, 32, 70])
@pytest.mark.parametrize("k", [1, 31, 32, 45])
def test_packed_weights_lie_as_they_are_described(n: int, k: int) -> None:
    rows, columns = math.ceil(n / 32) * 32, math.ceil(k / 32) * 32
    for dtype in DTYPES:
        weight = guarded(n, k, 3, dtype, math.nan)
        weight[:] = numbers(n, k, dtype, n + k)
        whole = functional.pad(weight, (0, columns - k, 0, rows - n))
        if dtype == torch.bfloat16:
            # [n/32][tile][16 n][k/32][16 pairs][2] -> [n/32][k/32][tile][16 pairs][16 n][2]
            axes = whole.view(rows // 32, 2, 16, columns // 32, 16, 2).permute(0, 3, 1, 4, 2, 5)
        else:
            axes = whole.view(rows // 32, 32, columns).permute(0, 2, 1)
        assert torch.equal(pack(weight), axes.flatten())


def test_huge_pages_keep_what_is_there() -> None:
    for count in (0, 1, 5_000, 2_000_000):
        array = torch.arange(count, dtype=torch.float32)
        native.advise_huge(array)
        assert torch.equal(array, torch.arange(count, dtype=torch.float32))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.zeros(2, 40, dtype=BF16)}, r"x is \[2, 40\]; it must be \[2, 64 or more\]"),
        ({"x": torch.zeros(2, 64, dtype=torch.float64)}, "x must be float32 or bfloat16"),
        ({"x": torch.zeros(64, 2, dtype=BF16).T}, "x has columns that are not adjacent"),
        ({"out": torch.zeros(3, 40)}, r"out is \[3, 40\]; it must be \[2, 40 or more\]"),
        ({"out": torch.zeros(2, 40, dtype=torch.float16)}, "out must be float32 or bfloat16"),
        ({"weight": torch.zeros(64 * 64)}, "weight is float32, not bfloat16"),
        ({"weight": torch.zeros(9, dtype=BF16)}, "weight has 9 numbers, not 4096"),
        ({"n": 0}, "n is 0; it must be at least 1"),
        ({"k": -1}, "k is -1; it must be at least 1"),
        # Their product is 4096 as an integer of 64 bits.
        ({"n": 2**58 + 64, "k": 64}, "n is 288230376151711808; it must be at most"),
        ({"k": 2**63 - 1}, "k is 9223372036854775807; it must be at most"),
        ({"out": torch.zeros(1, 40).expand(2, -1)}, "out has rows that lie on each other"),
        ({"gated": True}, "n is 40; gated, it must be a multiple of 32"),
        ({"bias": torch.zeros(39)}, "bias has 39 numbers, not 40"),
        ({"activation": "softmax"}, "activation is 'softmax'"),
        ({"residual": torch.zeros(2, 40)}, "residual must be of x's type"),
        (
            {"residual": torch.zeros(2, 40, dtype=BF16), "activation": "silu"},
            "residual goes with neither gates nor an activation",
        ),
        ({"alpha": 2.0}, "alpha goes with a residual only"),
    ],
)
def test_wrong_arguments_are_told_by_name(changed: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "out": torch.zeros(2, 40, dtype=BF16),
        "x": torch.zeros(2, 64, dtype=BF16),
        "weight": torch.zeros(64 * 64, dtype=BF16),
        "n": 40,
        "k": 45,
    }
    with pytest.raises(ValueError, match=message):
        native.linear(**{**arguments, **changed})
