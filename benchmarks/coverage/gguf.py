"""GGUF: a Llama-like model as llama.cpp has it, in one file with its configuration and tokenizer.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes the form.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.coverage.packing import q8_blocks

_MAGIC, _VERSION, _ALIGNMENT = b"GGUF", 3, 32
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_F32, _Q8_0 = 0, 8
_NORMAL_TOKEN, _CONTROL_TOKEN = 1, 3

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "mlp.up_proj": "ffn_up",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """The matrix of queries or keys for a rotation that turns neighbours, and not the halves of a
    head against each other."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path, config: Mapping[str, Any], words: Sequence[str], weights: Mapping[str, Tensor]
) -> None:
    """Write a model of the type llama, its matrices in Q8_0.

    Args:
        config: as transformers has it.
        words: the tokens of a tokenizer of bytes, without merges. The first three are special.
        weights: by the names that transformers has for them.
    """
    metadata = b"".join(
        _text(key) + struct.pack("<I", kind) + value for key, kind, value in _keys(config, words)
    )
    infos, data = b"", b""
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, config["head_dim"])
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        is_matrix = weight.ndim == 2
        stored = q8_blocks(weight)[0] if is_matrix else weight.float()
        sides = tuple(reversed(weight.shape))
        infos += _text(name) + struct.pack(f"<I{len(sides)}Q", len(sides), *sides)
        infos += struct.pack("<IQ", _Q8_0 if is_matrix else _F32, len(data))
        data += stored.contiguous().view(torch.uint8).numpy().tobytes()
        data += bytes(-len(data) % _ALIGNMENT)
    count = len(_keys(config, words))
    head = _MAGIC + struct.pack("<IQQ", _VERSION, len(weights), count) + metadata + infos
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)


def _keys(config: Mapping[str, Any], words: Sequence[str]) -> list[tuple[str, int, bytes]]:
    """Key, type and value of all that is said beside the tensors."""
    numbers = {
        "general.file_type": 7,
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    fractions = {
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
    }
    texts = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
    }
    kinds = [_CONTROL_TOKEN] * 3 + [_NORMAL_TOKEN] * (len(words) - 3)
    types = struct.pack(f"<{len(kinds)}i", *kinds)
    return [
        *((key, _STRING, _text(text)) for key, text in texts.items()),
        *((key, _UINT32, struct.pack("<I", number)) for key, number in numbers.items()),
        *((key, _FLOAT32, struct.pack("<f", number)) for key, number in fractions.items()),
        (
            "tokenizer.ggml.tokens",
            _ARRAY,
            _array(_STRING, len(words)) + b"".join(map(_text, words)),
        ),
        ("tokenizer.ggml.token_type", _ARRAY, _array(_INT32, len(kinds)) + types),
        ("tokenizer.ggml.merges", _ARRAY, _array(_STRING, 0)),
    ]


def _array(kind: int, count: int) -> bytes:
    return struct.pack("<IQ", kind, count)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
