"""model_387m: the random model of 387 M parameters that the benchmarks compare on."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCAB_SIZE = 32_000


def make_config(**options: Any) -> Qwen2Config:
    """Its configuration: Qwen2.5 0.5B's with a smaller vocabulary."""
    return Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        **{"vocab_size": VOCAB_SIZE, **options},
    )


def make_model(**options: Any) -> Any:  # `to` with only a type has no type annotation
    """Make the model in bfloat16, the same one at every call. `options` go to its configuration."""
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(make_config(**options))
    return model.to(torch.bfloat16)
