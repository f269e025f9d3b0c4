from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from engine.api.config import EngineConfig
from engine.cache.storage import cache_shapes
from engine.model.tracing.latents import ExpansionError, Sizes, are_latents, extract_expansions
from engine.model.tracing.trace import trace
from tests.support.zoo import MAX_LEN, tiny_config, tiny_model

RANK, ROPE, NOPE, VALUE, HEADS = 20, 8, 12, 16, 4


def expanding(model: Any) -> list[nn.Linear]:
    """The modules of the tiny model that make keys and values of latents."""
    return [layer.self_attn.kv_b_proj for layer in model.model.layers]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_expansions_are_the_weights_that_are_let_go(dtype: torch.dtype) -> None:
    model = tiny_model("glm4_moe_lite", dtype=dtype)
    weights = [module.weight.detach().clone() for module in expanding(model)]
    found = extract_expansions(model)
    assert sorted(found) == [0, 1, 2]
    for layer, weight in enumerate(weights):
        heads = weight.view(HEADS, NOPE + VALUE, RANK)
        assert torch.equal(found[layer].keys, heads[:, :NOPE])
        assert torch.equal(found[layer].values, heads[:, NOPE:])
    assert [module.weight.numel() for module in expanding(model)] == [0, 0, 0]


def test_what_is_traced_is_what_the_cache_is_handed() -> None:
    """20 + 8 numbers a token and layer, not 4 * (20 + 16)."""
    config = tiny_config("glm4_moe_lite")
    model_class = type(tiny_model("glm4_moe_lite"))
    shape = trace(model_class, config, torch.bfloat16).shape
    assert shape.kv_bytes_per_token == 3 * (RANK + ROPE) * 2
    (part,) = cache_shapes(EngineConfig(num_blocks=7, max_model_len=MAX_LEN), shape)
    assert (part.num_kv_heads, part.head_dim, part.value_dim) == (1, RANK + ROPE, RANK)
    assert part.value_in_key

    expanded = trace(model_class, config, torch.bfloat16, latents=False).shape
    assert expanded.kv_bytes_per_token == 3 * HEADS * (NOPE + ROPE + VALUE) * 2
    assert not expanded.has_latents


class Squared(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square()


class Mean(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + super().forward(x).mean(-2, keepdim=True)


class Biased(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize("kind", [Squared, Mean, Biased])
def test_an_expansion_that_is_not_linear_token_by_token_is_told(kind: type[nn.Linear]) -> None:
    model: Any = tiny_model("glm4_moe_lite")
    last = kind(RANK, HEADS * (NOPE + VALUE), bias=False)
    model.model.layers[2].self_attn.kv_b_proj = last
    with pytest.raises(ExpansionError, match="layer 2 does not make keys and values linearly"):
        extract_expansions(model)


@pytest.mark.parametrize(
    ("handed", "attended", "num_heads"),
    [
        (Sizes(2, 16, 16), Sizes(2, 16, 16), 4),  # keys and values
        (Sizes(1, 16, 16), Sizes(1, 16, 16), 4),  # those of one head
        (Sizes(1, 16, 16), Sizes(4, 16, 16), 4),  # which is repeated
        (Sizes(1, 20, 8), Sizes(2, 20, 16), 4),  # made for fewer heads than attend
    ],
)
def test_keys_and_values_are_no_latents(handed: Sizes, attended: Sizes, num_heads: int) -> None:
    assert not are_latents(handed, attended, num_heads)
    assert are_latents(Sizes(1, 20, 8), Sizes(4, 20, 16), 4)
