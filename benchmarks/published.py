"""Random models in bfloat16, in the shapes of published ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

POSITIONS = 40_960


def _config(
    kind: Any,
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    tied: bool = False,
    **more: int,
) -> PreTrainedConfig:
    """A configuration of some kind. What only some kinds know is given under their own names."""
    config: PreTrainedConfig = kind(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=tied,
        **more,
    )
    return config


_small_qwen3 = partial(
    _config,
    Qwen3Config,
    layers=28,
    heads=16,
    kv_heads=8,
    vocab=151_936,
    tied=True,
    head_dim=128,
)

CONFIGS: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama-8b": partial(
        _config,
        LlamaConfig,
        hidden=4096,
        intermediate=14_336,
        layers=32,
        heads=32,
        kv_heads=8,
        vocab=128_256,
    ),
    "qwen3-0.6b": partial(_small_qwen3, hidden=1024, intermediate=3072),
    "qwen3-1.7b": partial(_small_qwen3, hidden=2048, intermediate=6144),
    "qwen3-30b-a3b": partial(
        _config,
        Qwen3MoeConfig,
        hidden=2048,
        intermediate=6144,
        layers=48,
        heads=32,
        kv_heads=4,
        vocab=151_936,
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    ),
    "tiny": partial(
        _config,
        LlamaConfig,
        hidden=64,
        intermediate=96,
        layers=2,
        heads=4,
        kv_heads=2,
        vocab=300,
    ),
}


def make_model(name: str, device: torch.device, **changes: int) -> PreTrainedModel:
    """Make the model on the device, the same one at every call.

    Args:
        changes: to its configuration, as `layers`.
    """
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    with torch.device(device):
        model: PreTrainedModel = auto.from_config(
            CONFIGS[name](**changes), dtype=torch.bfloat16
        ).eval()
    return model
