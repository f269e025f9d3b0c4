"""GGUF: a model in one file, with configuration and tokenizer, as llama.cpp's converter writes it.

The gguf library, which reads such files here, also packs and writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedConfig

_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
_NORMAL_TOKEN, _CONTROL_TOKEN = 1, 3


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """The matrix of queries or keys for a rotation that turns neighbours, and not the halves of a
    head against each other."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def as_stored(weight: Tensor, kind: str) -> Tensor:
    """The weight as a file whose matrices are of this type keeps it."""
    if weight.ndim < 2:
        return weight
    own = gguf.GGMLQuantizationType[kind]
    packed = gguf.quantize(weight.float().contiguous().numpy(), own)
    return torch.from_numpy(gguf.dequantize(packed, own)).reshape(weight.shape)


def write_gguf(
    path: Path,
    config: PreTrainedConfig,
    tokens: Sequence[str],
    weights: Mapping[str, Tensor],
    kind: str = "Q8_0",
    *,
    ends: Mapping[str, int],
    merges: Sequence[str] = (),
    more: Mapping[str, int | str] | None = None,
    part_tensors: int = 0,
) -> None:
    """Write a model.

    Args:
        tokens: of a tokenizer of bytes. Those that begin with < are special.
        weights: by the names that transformers has for them.
        kind: the type of the matrices; the others stay in float32.
        ends: number of the tokens `pad`, `bos`, `eos` and `unk`, as far as there are such.
        merges: of the tokenizer.
        more: keys that are written besides; `architecture` is written in place of the model's own.
        part_tensors: most tensors of a part, where the model is written in several.
    """
    own = _ARCHITECTURES[config.model_type]
    told = dict(more or {})
    architecture_name = str(told.pop("architecture", own))
    writer = gguf.GGUFWriter(path, architecture_name, split_max_tensors=part_tensors)
    _write_config(writer, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(tokens))
    kinds = [_CONTROL_TOKEN if token.startswith("<") else _NORMAL_TOKEN for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges(list(merges))
    for name, number in ends.items():
        getattr(writer, f"add_{name}_token_id")(number)
    for key, value in told.items():
        (writer.add_uint16 if isinstance(value, int) else writer.add_string)(key, value)
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == own)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    stored = gguf.GGMLQuantizationType[kind]
    for key, weight in weights.items():
        for name, part in _tensors(key, weight.float(), config, names):
            values = part.contiguous().numpy()
            if values.ndim > 1:
                writer.add_tensor(name, gguf.quantize(values, stored), raw_dtype=stored)
            else:
                writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_config(writer: Any, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = _head_dim(config)
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _head_dim(config: Any) -> int:
    found: int = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    return found


def _tensors(key: str, weight: Tensor, config: Any, names: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of llama.cpp's converter for a weight of a model."""
    base, dot, suffix = key.rpartition(".")
    if ".experts." in key:
        layer = key.split(".")[2]
        split = suffix == "gate_up_proj"
        parts = weight.chunk(2, dim=1) if split else (weight,)
        for name, part in zip(("gate", "up") if split else ("down",), parts, strict=True):
            yield f"blk.{layer}.ffn_{name}_exps.weight", part
        return
    if config.model_type == "llama" and base.endswith(("q_proj", "k_proj")):
        weight = interleaved(weight, _head_dim(config))
    yield names.get_name(base) + dot + suffix, weight
