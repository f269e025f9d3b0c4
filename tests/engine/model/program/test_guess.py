"""The function of a module is distinguished from similar ones, in coarse types too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from engine.model.program.agree import agree
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.elementwise import Elementwise, activation_of
from engine.model.program.operations.norm import Norm, norm_of

DTYPES = [torch.float32, torch.bfloat16]


def guessed(module: nn.Module, x: Tensor) -> Operation | None:
    with torch.inference_mode():
        out = module(x)
    given, made = x.flatten(1), out.flatten(1)
    view = View(Value(given, False), 0, given.shape[1])
    value = Value(made, False)
    return activation_of(module, view, value) or norm_of(module, view, value, x.shape[-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("silu", "silu"),
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("quick_gelu", "quick_gelu"),
        ("relu", "relu"),
        ("relu2", "relu2"),
        ("sigmoid", "sigmoid"),
        ("tanh", "tanh"),
        # Close to one of ours, somewhere or everywhere.
        ("mish", None),
        ("hardswish", None),
        ("leaky_relu", None),
        ("relu6", None),
        ("gelu_10", None),
    ],
)
def test_an_activation_is_no_other(name: str, expected: str | None, dtype: torch.dtype) -> None:
    found = guessed(ACT2FN[name], torch.linspace(-3, 3, 23 * 8, dtype=dtype).view(23, 8))
    assert (found.activation if isinstance(found, Elementwise) else None) == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_a_mean_near_0_is_subtracted_all_the_same(
    center: bool, bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    module = nn.LayerNorm(4096, bias=bias) if center else nn.RMSNorm(4096, eps=1e-5)
    found = guessed(module.to(dtype), torch.randn(23, 4096).to(dtype))
    assert isinstance(found, Norm)
    assert found.center == center


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3])
def test_a_norm_without_weights_is_over_the_last_axis(heads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.RMSNorm(32, eps=1e-5, elementwise_affine=False)
    x = torch.randn(23, heads, 32) * torch.arange(1, heads + 1)[:, None]
    found = guessed(module, x.to(dtype))
    assert isinstance(found, Norm)
    assert (found.groups, found.weight, found.center) == (heads, None, False)


def test_one_row_that_differs_is_no_agreement() -> None:
    recorded = torch.ones(23, 8)
    recorded[0] = 1e4  # beside which no other row counts in a norm over all of them
    got = recorded.clone()
    assert agree(got, recorded)
    got[7] *= 1.1
    assert not agree(got, recorded)
