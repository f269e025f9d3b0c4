"""GGUF files of tiny models, written with the gguf library as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import PreTrainedModel

from tests.support.checkpoints import END_ID, tiny_tokenizer
from tests.support.zoo import tiny_model

_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}


def save_gguf(
    file: Path, name: str = "llama", kind: str = "Q8_0", *, template: str | None = None, **more: Any
) -> PreTrainedModel:
    """Write a model of the zoo; returns the model as it was before its layers were quantized.

    Args:
        kind: type of the matrices; the others stay in float32.
        more: keys and strings that are written too.
    """
    # transformers takes the heads of these for as wide as those of all that were published.
    wide = {"head_dim": 128} if name.startswith("qwen3") else {}
    model = tiny_model(name, hidden_size=64, intermediate_size=96, **wide)
    architecture = _ARCHITECTURES[name]
    writer = gguf.GGUFWriter(file, more.pop("architecture", architecture))
    _write_config(writer, model.config)
    _write_tokenizer(writer, template)
    for key, value in more.items():
        if isinstance(value, int):
            writer.add_uint16(key, value)
        else:
            writer.add_string(key, value)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    quantized = gguf.GGMLQuantizationType[kind]
    for key, weight in model.state_dict().items():
        for own, values in _tensors(key, weight.numpy(), model.config, names):
            if values.ndim > 1:
                packed = gguf.quantize(values, quantized)
                writer.add_tensor(own, packed, raw_dtype=quantized)
            else:
                writer.add_tensor(own, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_config(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _write_tokenizer(writer: gguf.GGUFWriter, template: str | None) -> None:
    vocabulary = tiny_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    # Byte-level tokenizers spell a space and a new line by letters of their own.
    spelled = [*(token.replace(" ", "Ġ").replace("\n", "Ċ") for token in tokens), "He"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(spelled)
    writer.add_token_types([3 if token.startswith("<") else 1 for token in spelled])
    writer.add_token_merges(["H e"])
    writer.add_eos_token_id(END_ID)
    writer.add_unk_token_id(0)
    if template is not None:
        writer.add_chat_template(template)


def _tensors(
    key: str, weight: np.ndarray[Any, Any], config: Any, names: Any
) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """The tensors of llama.cpp's converter for a weight of a model."""
    base, dot, suffix = key.rpartition(".")
    if key.endswith(".experts.gate_up_proj"):
        gate, up = np.split(weight, 2, axis=1)
        layer = key.split(".")[2]
        return [
            (f"blk.{layer}.ffn_gate_exps.weight", np.ascontiguousarray(gate)),
            (f"blk.{layer}.ffn_up_exps.weight", np.ascontiguousarray(up)),
        ]
    if key.endswith(".experts.down_proj"):
        return [(f"blk.{key.split('.')[2]}.ffn_down_exps.weight", weight)]
    if config.model_type == "llama" and base.endswith(("q_proj", "k_proj")):
        heads = config.num_attention_heads
        if base.endswith("k_proj"):
            heads = config.num_key_value_heads
        # llama.cpp rotates neighbours, where transformers rotates halves.
        halves = weight.reshape(heads, 2, -1, weight.shape[1])
        weight = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
    return [(names.get_name(base) + dot + suffix, weight)]
