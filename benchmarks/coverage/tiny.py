"""Tiny: a small random model of any type, from transformers' own configuration of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

VOCAB_SIZE = 512
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16
HIDDEN = HEADS * HEAD_DIM
POSITIONS = 512
# The window is shorter than most prompts and no multiple of a block.
WINDOW = 24

_INNER = 128
_EXPERTS, _CHOSEN, _EXPERT_INNER = 4, 2, 32

# A type takes the values whose keys its own default configuration has. Types name the same size in
# many ways.
_VALUES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), HIDDEN
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("attention_heads", "linear_num_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), KV_HEADS),
    **dict.fromkeys(("head_dim", "kv_channels", "v_head_dim", "qk_nope_head_dim"), HEAD_DIM),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), POSITIONS),
    **dict.fromkeys(("intermediate_size", "dff", "ffn_dim", "ffn_hidden_size"), _INNER),
    **dict.fromkeys(("dense_intermediate_size",), _INNER),
    **dict.fromkeys(("sliding_window", "attention_window_size"), WINDOW),
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.05,
    "rotary_dim": 8,
    # These are of mixtures of experts.
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), _EXPERTS),
    **dict.fromkeys(("moe_num_experts",), _EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), _CHOSEN),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), _EXPERT_INNER),
    **dict.fromkeys(("shared_intermediate_size", "expert_ffn_hidden_size"), _EXPERT_INNER),
    **dict.fromkeys(("moe_shared_expert_intermediate_size",), _EXPERT_INNER),
    **dict.fromkeys(("shared_experts_intermediate_size",), _EXPERT_INNER),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "n_shared_experts"), 1),
    "num_nextn_predict_layers": 0,
    # These are of latent attention and of indexers.
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "index_topk": 16,
    "index_head_dim": 16,
    "index_n_heads": 2,
    # These are of layers that keep a state.
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "n_mamba_heads", "n_groups"), 2),
    **dict.fromkeys(("linear_num_value_heads", "linear_conv_kernel_dim"), 4),
    **dict.fromkeys(("short_conv_kernel_size",), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_dt_rank", "time_step_rank"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 16),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 16),
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
}
# Where a type's default is None or 0, a value for one of these would switch something on.
_SWITCHES = {
    *("sliding_window", "head_dim", "v_head_dim", "bos_token_id", "num_nextn_predict_layers"),
    *("rotary_dim", "num_key_value_heads", "n_group", "topk_group", "q_lora_rank", "index_topk"),
    "n_shared_experts",
}


def tiny_config(model_type: str, overrides: Mapping[str, Any]) -> PreTrainedConfig:
    """A tiny configuration of a type of transformers."""
    config_class = CONFIG_MAPPING[model_type]
    config: PreTrainedConfig = config_class(**tiny_values(config_class, overrides))
    return config


def tiny_values(
    config_class: type[PreTrainedConfig], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a tiny configuration of a class: its own kinds of layers are all kept."""
    default = _defaults(config_class)
    aliases = getattr(config_class, "attribute_map", {})
    values: dict[str, Any] = {}
    for key, value in _VALUES.items():
        alias = aliases.get(key)
        if key in default and (default[key] or key not in _SWITCHES):
            values[key] = value
        elif alias is not None and alias not in _VALUES:
            values[alias] = value
    kinds = default.get("layer_types")
    if isinstance(kinds, list) and kinds:
        distinct = list(dict.fromkeys(kinds))
        values["layer_types"] = (distinct * LAYERS)[: max(LAYERS, len(distinct))]
    if "qk_rope_head_dim" in values and "kv_lora_rank" in values:
        values["head_dim"] = values["qk_rope_head_dim"]
    return values | dict(overrides)


def _defaults(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """A class's default values; where it has no default configuration, 1 for each key it knows."""
    try:
        values: dict[str, Any] = config_class().to_dict()
    except Exception:  # some classes insist on arguments, each in its own way
        known = getattr(config_class, "__dataclass_fields__", {})
        values = {key: 1 for key in _VALUES if key in known}
    return values


def randomise(model: PreTrainedModel, seed: int = 7) -> PreTrainedModel:
    """Give a model weights at which its attention is not uniform and its outputs differ.

    Biases and norms are random too: at the zeros and ones that they start from, nobody could tell
    whether they are used. Embeddings are small, because a head that is tied to them would repeat
    the last token. What a class sets to one value stays.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or parameter.numel() == 0:
                continue
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter.ndim == 1 or min(parameter.shape) == 1:
                parameter.add_(noise, alpha=0.1)
            elif float(parameter.float().std()) > 0:
                is_table, is_filter = id(parameter) in tables, parameter.ndim > 3
                parameter.copy_(noise * (0.05 if is_table else 0.1 if is_filter else 0.2))
    return model


def tiny_words() -> list[str]:
    """The tokens: three special ones, one for each byte, and words of no use up to the size of the
    vocabulary."""
    words = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return words + [f"w{number}" for number in range(VOCAB_SIZE - len(words))]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte."""
    vocabulary = {word: i for i, word in enumerate(tiny_words())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
