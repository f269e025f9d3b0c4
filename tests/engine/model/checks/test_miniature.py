"""Small models of classes whose sizes depend on each other, made from the sizes of real ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from engine.api.errors import ModelError
from engine.batch.shape import ModelShape
from engine.model.checks.gate import find_class
from engine.model.checks.miniature import SHORT_WINDOW, miniature
from engine.model.tracing.trace import trace
from tests.support.zoo import tiny_config

META = torch.device("meta")

# transformers' defaults are the sizes of a published model. None states which layers of Bamba and
# Granite attend.
REAL: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "starcoder2": {},
    "qwen2_moe": {},
    "deepseek_v3": {},
    "gpt_oss": {},
    # Layers are named by numbers with a leading zero, and differ in their heads.
    "gemma4_text": {},
    # Mamba 2, whose heads make the width; without attention, beside it, and in one layer with it.
    "mamba2": {},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "granitemoehybrid": {"layer_types": (["linear_attention"] * 5 + ["full_attention"]) * 5},
    "falcon_h1": {},
    "nemotron_h": {},
    # The layers that attend are every eighth.
    "jamba": {},
    # Experts that would take 1.6 GB a layer.
    "qwen3_next": {},
}


def small(kind: str, **changes: Any) -> tuple[int, ModelShape, ModelShape]:
    """How many numbers the miniature of a kind has, its shape, and that of the kind."""
    if "layer_types" in changes:
        changes["num_hidden_layers"] = len(changes["layer_types"])
    config = AutoConfig.for_model(kind, **changes)
    shape = trace(find_class(config), config, torch.bfloat16).shape
    model, small_shape = miniature(find_class(config), config, shape, META)
    return sum(one.numel() for one in model.parameters()), small_shape, shape


# Those of each way in which sizes depend on each other; tracing the real ones takes the time.
SHORT = ("llama", "gemma4_text", "mamba2", "bamba", "qwen3_next")


@pytest.mark.parametrize(
    "kind",
    [kind if kind in SHORT else pytest.param(kind, marks=pytest.mark.long) for kind in REAL],
)
def test_a_real_model_has_a_miniature_like_it(kind: str) -> None:
    size, got, real = small(kind, **REAL[kind])
    assert size < 64e6, "a quarter of a GB"
    assert (got.head_dim, got.value_dim) == (real.head_dim, real.value_dim)
    assert got.num_heads // got.num_kv_heads == real.num_heads // real.num_kv_heads
    assert bool(got.state_bytes) == bool(real.state_bytes)
    expected = {None if window is None else SHORT_WINDOW for window in real.windows}
    assert set(got.windows) == expected
    assert bool(got.mixed) == bool(real.mixed)


def test_the_original_configuration_stays_as_it_is() -> None:
    config = tiny_config("gemma2")
    before = config.to_dict()
    shape = trace(find_class(config), config, torch.float32).shape
    miniature(find_class(config), config, shape, META)
    assert config.to_dict() == before


def test_what_cannot_be_made_small_is_refused_with_the_reason() -> None:
    config = tiny_config("llama")
    shape = trace(find_class(config), config, torch.float32).shape
    config.hidden_act = "unheard of"
    with pytest.raises(ModelError, match="LlamaForCausalLM is not supported: no small model"):
        miniature(find_class(config), config, shape, META)


def test_what_only_constructors_set_is_set() -> None:
    """The bends of Apertus' activation are parameters that no initialisation knows."""
    config = AutoConfig.for_model(
        "apertus", hidden_size=48, num_attention_heads=4, num_hidden_layers=2, vocab_size=128
    )
    shape = trace(find_class(config), config, torch.float32).shape
    model, _ = miniature(find_class(config), config, shape, torch.device("cpu"))
    assert model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits.isfinite().all()
    assert not model.training


def test_seeds_give_different_models() -> None:
    config = tiny_config("llama")
    shape = trace(find_class(config), config, torch.float32).shape
    one, same, other = (
        miniature(find_class(config), config, shape, torch.device("cpu"), seed)[0].lm_head.weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
