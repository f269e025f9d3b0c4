"""RMSNorm and LayerNorm against their definitions, and transformers' and torch's modules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.support.matrices import DTYPES, ROUNDING, Matrix, assert_within
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")
every_level = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
EPS = 1e-5
FLOAT = 2.0**-24


def numbers(count: int, seed: int) -> Tensor:
    return Matrix(1, count, torch.float32, 0, seed).data[0]


def definition(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, center: bool
) -> tuple[Tensor, Tensor]:
    """The exact result in float64, and how far statistics in float32 may put it off."""
    rows, columns = x.shape
    grouped = x.reshape(rows, groups, columns // groups)
    mean = grouped.mean(-1, keepdim=True) if center else torch.zeros(())
    centred = grouped - mean
    scale = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    w = torch.ones(()) if weight is None else weight.double()
    b = torch.zeros(()) if bias is None else bias.double()
    result = centred * scale * w + b
    # Sums by 16 lanes: so many roundings one after another, and a few at the end.
    steps = columns / groups / 16 + 12
    size = grouped.abs().amax(-1, keepdim=True) * scale
    slack = FLOAT * steps * (centred.abs() * scale + (size if center else 0)) * w.abs()
    slack = slack + 2 * FLOAT * b.abs()
    return result.reshape(rows, columns), slack.expand_as(grouped).reshape(rows, columns)


@every_level
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 9),
    groups=st.integers(1, 5),
    width=st.integers(1, 150),
    gap=st.integers(0, 20),
    weighted=st.booleans(),
    biased=st.booleans(),
    center=st.booleans(),
    in_place=st.booleans(),
)
def test_is_its_definition(
    dtype: torch.dtype,
    rows: int,
    groups: int,
    width: int,
    gap: int,
    weighted: bool,
    biased: bool,
    center: bool,
    in_place: bool,
) -> None:
    columns = groups * width
    x = Matrix(rows, columns, dtype, gap, 1)
    out = x if in_place else Matrix(rows, columns, dtype, gap, 4)
    weight = numbers(width, 5) if weighted else None
    bias = numbers(width, 6) if biased else None
    expected, slack = definition(x.exact, groups, weight, bias, center)

    native.norm(
        out.data,
        x.data,
        groups=groups,
        weight=weight,
        bias=bias,
        eps=EPS,
        center=center,
    )

    assert_within(out.data, expected, ROUNDING[dtype] * expected.abs() + 2 * slack + 1e-30)
    assert x.keeps_rest()
    assert out.keeps_rest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 896, 4864])
def test_is_llamas(dtype: torch.dtype, width: int) -> None:
    theirs = LlamaRMSNorm(width, eps=EPS).to(dtype)
    theirs.weight.data.copy_(numbers(width, 9))
    x = Matrix(17, width, dtype, 0, 5)
    out = Matrix(17, width, dtype, 0, 6)
    native.norm(out.data, x.data, weight=theirs.weight.data.float(), eps=EPS)
    expected = theirs(x.data).detach().double()
    # Theirs rounds before the weight, and after it.
    assert_within(out.data, expected, (4 * ROUNDING[dtype] + 1e-5) * expected.abs() + 1e-30)


def test_a_mean_far_from_zero_does_not_cancel() -> None:
    """The mean of squares less the mean's square would have no correct digit here."""
    x = torch.randn(3, 90, generator=torch.Generator().manual_seed(1)) + 5000
    out = torch.empty_like(x)
    native.norm(out, x, eps=EPS, center=True)
    expected, slack = definition(x.double(), 1, None, None, True)
    assert_within(out, expected, 2 * slack)
    assert float(slack.max()) < 0.03


def test_what_is_not_finite_stays_in_its_group() -> None:
    x = torch.ones(2, 64)
    x[0, 3], x[1, 40] = float("nan"), float("inf")
    out = torch.empty_like(x)
    native.norm(out, x, groups=2)
    assert out[0, :32].isnan().all()
    assert out[1, 40].isnan()
    assert out[0, 32:].isfinite().all()
    assert out[1, :32].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_do_not_change_it(dtype: torch.dtype) -> None:
    x = Matrix(301, 896, dtype, 0, 9).data
    results = []
    before = native.threads()
    try:
        for threads in (1, 3):
            native.set_threads(threads)
            out = torch.zeros_like(x)
            native.norm(out, x, eps=EPS)
            results.append(out)
    finally:
        native.set_threads(before)
    assert torch.equal(*results)
    expected, slack = definition(x.double(), 1, None, None, False)
    assert_within(results[0], expected, ROUNDING[dtype] * expected.abs() + 2 * slack)


def test_refuses_by_name() -> None:
    x = torch.zeros(4, 12)
    out = torch.zeros(4, 12)

    def refusal(*args: object, **kwargs: object) -> str:
        with pytest.raises(ValueError, match=r"\w+ (is|has|must|overlaps)") as caught:
            native.norm(*args, **kwargs)
        return str(caught.value)

    assert refusal(out, x, groups=5).startswith("groups ")
    assert refusal(out, x, groups=0).startswith("groups ")
    assert refusal(out[:3], x).startswith("out ")
    assert refusal(out.bfloat16(), x).startswith("out ")
    assert refusal(out.double(), x.double()).startswith("x ")
    assert refusal(out, x.t().reshape(-1)).startswith("x ")
    assert refusal(out, x, weight=torch.ones(11)).startswith("weight ")
    assert refusal(out, x, bias=torch.ones(12).bfloat16()).startswith("bias ")
    flat = torch.zeros(60)
    shifted = flat[1:49].view(4, 12)
    assert refusal(shifted, flat[:48].view(4, 12)).startswith("out ")
