"""The configuration in GGUF files, by transformers' names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.api.errors import ModelError
from engine.model.files.gguf.config import read_config
from engine.model.files.gguf.header import read_header

LLAMA = {
    "context_length": 4096,
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 0.5,
    "rope.dimension_count": 16,
    "rope.freq_base": 500_000.0,
}


def read(
    folder: Path,
    stated: dict[str, Any],
    architecture: str = "llama",
    tensors: dict[str, list[float]] | None = None,
) -> dict[str, Any]:
    path = folder / "a.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in stated.items():
        key = f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    writer.add_eos_token_id(7)
    writer.add_tensor("token_embd.weight", np.zeros((32, 4), np.float32))
    for name, numbers in (tensors or {}).items():
        writer.add_tensor(name, np.array(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_config(read_header(path), path)


def test_a_llama(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA) == {
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 0.5,
        "head_dim": 16,
        "rope_theta": 500_000.0,
        "vocab_size": 32,  # the rows of the embedding
        "eos_token_id": 7,
        "tie_word_embeddings": True,
    }


def test_a_head_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, LLAMA, tensors={"output.weight": [0.0]})
    assert found["tie_word_embeddings"] is False


@pytest.mark.parametrize(
    ("architecture", "stated", "expected"),
    [
        ("llama", {"attention.key_length": 24}, {"head_dim": 24}),
        ("qwen3", {"attention.key_length": 24}, {"model_type": "qwen3", "head_dim": 24}),
        (
            "qwen3moe",
            {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 48},
            {
                "model_type": "qwen3_moe",
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 48,
                "norm_topk_prob": True,
            },
        ),
        (
            "gemma2",
            {
                "attention.key_length": 32,
                "attention.sliding_window": 512,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            },
            {
                "head_dim": 32,
                "sliding_window": 512,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "query_pre_attn_scalar": 32,
            },
        ),
        (
            "gemma2",
            {"attention.key_length": 32, "block_count": 46},
            {"query_pre_attn_scalar": 16},
        ),
        (
            "gemma3",
            {"attention.key_length": 32, "attention.sliding_window_pattern": 2},
            {
                "model_type": "gemma3_text",
                "layer_types": ["sliding_attention", "full_attention"],
            },
        ),
        (
            "gemma3",
            {"attention.sliding_window_pattern": [False, True]},
            {"layer_types": ["full_attention", "sliding_attention"]},
        ),
        (
            "gemma3",
            {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
            {
                "rope_parameters": {
                    "full_attention": {
                        "rope_theta": 500_000.0,
                        "rope_type": "linear",
                        "factor": 8.0,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                }
            },
        ),
        ("gpt-oss", {"attention.sliding_window": 64}, {"sliding_window": 64}),
        (
            "phi3",
            {"rope.dimension_count": 8, "attention.sliding_window": 64},
            {
                "sliding_window": 64,
                "rope_parameters": {
                    "rope_theta": 500_000.0,
                    "rope_type": "default",
                    "partial_rotary_factor": 0.5,
                },
            },
        ),
        ("llama", {"attention.head_count_kv": [2, 2]}, {"num_key_value_heads": 2}),
        (
            "llama",
            {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
            {
                "rope_parameters": {
                    "rope_theta": 500_000.0,
                    "rope_type": "linear",
                    "factor": 4.0,
                }
            },
        ),
        (
            "llama",
            {"rope.scale_linear": 2.0},
            {
                "rope_parameters": {
                    "rope_theta": 500_000.0,
                    "rope_type": "linear",
                    "factor": 2.0,
                }
            },
        ),
        (
            "qwen2",
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 1024,
            },
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "rope_theta": 500_000.0,
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 1024,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                },
            },
        ),
        ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    ],
)
def test_what_is_stated(
    tmp_path: Path, architecture: str, stated: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = read(tmp_path, LLAMA | stated, architecture)
    assert {key: found.get(key) for key in expected} == expected
    if "rope_parameters" not in expected and architecture != "phi3":
        assert "rope_parameters" not in found


def test_frequencies_of_llama_3_1(tmp_path: Path) -> None:
    """A file has what each frequency is divided by, where the model's own configuration says how
    that is found."""
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    sizes: dict[str, Any] = {"head_dim": 16, "max_position_embeddings": 4096}
    own = LlamaRotaryEmbedding(AutoConfig.for_model("llama", rope_parameters=dict(llama3), **sizes))
    plain = LlamaRotaryEmbedding(AutoConfig.for_model("llama", rope_theta=500_000.0, **sizes))
    factors = (plain.inv_freq / own.inv_freq).tolist()
    assert len(set(factors)) > 2
    stated = read(tmp_path, LLAMA, tensors={"rope_freqs.weight": factors})
    found = LlamaRotaryEmbedding(AutoConfig.for_model(**stated))
    torch.testing.assert_close(found.inv_freq, own.inv_freq)
    assert found.attention_scaling == own.attention_scaling == 1.0


def test_factors_of_long_contexts(tmp_path: Path) -> None:
    stated = {
        "rope.scaling.original_context_length": 1024,
        "rope.scaling.attn_factor": 1.25,
    }
    tensors = {"rope_factors_long.weight": [4.0] * 8, "rope_factors_short.weight": [1.0] * 8}
    found = read(tmp_path, LLAMA | stated, "phi3", tensors)
    assert found["rope_parameters"] == {
        "rope_theta": 500_000.0,
        "partial_rotary_factor": 1.0,
        "rope_type": "longrope",
        "long_factor": [4.0] * 8,
        "short_factor": [1.0] * 8,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    }


@pytest.mark.parametrize(
    ("stated", "tensors", "sentence"),
    [
        (
            {"rope.scaling.type": "made-up"},
            {},
            "scales its positions by rope.scaling.type 'made-up', which is not read; put the "
            "model's own config.json beside it",
        ),
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            {"rope_freqs.weight": [1.0]},
            "scales its positions by rope_freqs.weight and rope.scaling.type 'linear', which is "
            "not read; put the model's own config.json beside it",
        ),
        (
            {},
            {"rope_freqs.weight": [0.0]},
            "is corrupt: rope_freqs.weight holds factors of 0 or below",
        ),
    ],
)
def test_positions_that_are_scaled_otherwise(
    tmp_path: Path, stated: dict[str, Any], tensors: dict[str, list[float]], sentence: str
) -> None:
    with pytest.raises(ModelError, match=f"^{tmp_path}/a.gguf {re.escape(sentence)}$"):
        read(tmp_path, LLAMA | stated, tensors=tensors)


def test_an_architecture_that_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is of the architecture 'rwkv7', which transformers .* "):
        read(tmp_path, LLAMA, "rwkv7")
