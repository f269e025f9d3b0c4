"""Random models in bfloat16, in the shapes of published ones, made on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

from engine.batch.shape import ModelShape
from engine.model.trace import trace

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


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
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
    "qwen3-0.6b": partial(
        _config,
        Qwen3Config,
        hidden=1024,
        intermediate=3072,
        layers=28,
        heads=16,
        kv_heads=8,
        vocab=151_936,
        tied=True,
        head_dim=128,
    ),
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


@dataclass(frozen=True, slots=True)
class Shaped:
    """The shape of a model, and what a decode step has to read of its weights.

    Attributes:
        experts, chosen: experts of a layer, and how many of them a token has; 0 if there are none.
        expert_bytes: of all experts of all layers.
        dense_bytes: of all other matrices, with the head and without an embedding of its own, of
            which a step reads some rows only.
    """

    name: str
    shape: ModelShape
    experts: int
    chosen: int
    expert_bytes: int
    dense_bytes: int

    def weight_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step reads at least. Tokens choose experts at random, as random
        weights have them do.
        """
        if not self.experts:
            return self.dense_bytes
        touched = 1 - (1 - self.chosen / self.experts) ** tokens
        return self.dense_bytes + touched * self.expert_bytes

    def step_bytes(self, sequences: int, context: int) -> float:
        """Bytes that a step of decodes moves at least."""
        return (
            self.weight_bytes(sequences) + sequences * (context + 1) * self.shape.kv_bytes_per_token
        )


def make(name: str, device: torch.device) -> tuple[PreTrainedModel, Shaped]:
    """A random model and its shape."""
    config = CONFIGS[name]()
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    with torch.device(device):
        model = auto.from_config(config, dtype=torch.bfloat16).eval()
    return model, shaped(name, model)


def shaped(name: str, model: PreTrainedModel) -> Shaped:
    """What a model's decode steps have to read."""
    shape = trace(type(model), model.config, torch.bfloat16).shape
    experts = sum(p.nbytes for n, p in model.named_parameters() if ".experts." in n)
    every = sum(p.nbytes for p in model.parameters())
    modules: Any = model
    table: torch.Tensor = modules.get_input_embeddings().weight
    head: torch.Tensor = modules.get_output_embeddings().weight
    tied = table.data_ptr() == head.data_ptr()
    config: Any = model.config
    return Shaped(
        name,
        shape,
        getattr(config, "num_experts", 0) or 0,
        getattr(config, "num_experts_per_tok", 0) or 0,
        experts,
        every - experts - (0 if tied else table.nbytes),
    )
