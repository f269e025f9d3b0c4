"""read_config: reads a GGUF file's configuration, by the names of transformers' configurations.

transformers' own table maps llama.cpp's keys to its names. This module adds what the table omits
although llama.cpp computes with it: the width of a head, scaled and partial rotations, windows,
soft caps, experts' sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from engine.api.errors import ModelError
from engine.model.files.checkpoint import CONFIG_FILE, StoredTensor
from engine.model.files.gguf.header import Header

_GENERAL = {"general", "tokenizer"}  # tables that belong to no architecture
# Names in transformers' table, or of its model type, that differ from llama.cpp's architecture.
_TABLES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
}
_MODEL_TYPES = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}  # files have only the text part

# Architectures whose attention may have heads of any width. A width that the table uses for another
# one is left alone.
_WIDE_HEADS = {
    *("llama", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gpt_oss", "phi3"),
    *("gemma2", "gemma3", "nemotron"),
}
_PARTLY_ROTATED = {"phi3", "stablelm", "nemotron"}
_ROTATED = _WIDE_HEADS | _PARTLY_ROTATED | {"starcoder2", "minimax_m2", "falcon", "lfm2"}
# Keys to read for these beside transformers' table.
_MORE: Mapping[str, Mapping[str, str]] = {
    "qwen2_moe": {
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    "qwen3_moe": {"expert_feed_forward_length": "moe_intermediate_size"},
    "gemma2": {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "gemma3": {"final_logit_softcapping": "final_logit_softcapping"},
    "gpt_oss": {"attention.sliding_window": "sliding_window"},
    "phi3": {"attention.sliding_window": "sliding_window"},
}
_TIED = {"falcon", "bloom"}  # their files contain the head a second time
# Layers of the largest Gemmas, by which llama.cpp knows them: they scale queries by the model's
# width over its heads.
_SCALED_BY_ALL = {"gemma2": 46, "gemma3": 62}
_SCALES_TWO_WAYS = "gemma3"  # layers with a window rotate by another base, which is not scaled
_LOCAL_BASE = 10_000.0
_GATES = {0: "none", 1: "softmax", 2: "sigmoid"}

_FREQUENCIES = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def read_config(header: Header, path: Path) -> dict[str, Any]:
    """The configuration, by transformers' names.

    Args:
        path: the file, for errors.

    Raises:
        ModelError: transformers does not support such a model, or not all of it.
    """
    from transformers import integrations

    tables: Any = integrations
    metadata = header.metadata
    architecture = architecture_of(header, path)
    table = _TABLES.get(architecture, architecture)
    known: dict[str, dict[str, str | None]] = tables.GGUF_CONFIG_MAPPING
    if table not in known or table in _GENERAL:
        own_names = {name: one for one, name in _TABLES.items()}
        allowed = sorted(own_names.get(name, name) for name in set(known) - _GENERAL)
        raise ModelError(
            f"{path} is of the architecture {architecture!r}, which transformers "
            f"{transformers.__version__} does not read; it reads {', '.join(allowed)}"
        )
    tensors = {tensor.name: tensor for tensor in header.checkpoint.tensors}
    stated: dict[str, Any] = {"tie_word_embeddings": "output.weight" not in tensors}
    if table in _TIED:
        stated["tie_word_embeddings"] = True
    stated |= tables.GGUF_CONFIG_DEFAULTS_MAPPING.get(table, {})
    own = _Own(metadata, architecture)
    names = {**known[table], **_MORE.get(table, {})}
    if table in _ROTATED:
        names["rope.freq_base"] = "rope_theta"
    if table in _WIDE_HEADS:
        names["attention.key_length"] = "head_dim"
    for key, name in names.items():
        if name is not None and (value := own.get(key)) is not None:
            stated[name] = value
    for key, name in known["tokenizer"].items():
        if name is not None and (value := metadata.get(f"tokenizer.{key}")) is not None:
            stated[name] = value
    stated["model_type"] = _MODEL_TYPES.get(table, table)
    if (embedding := tensors.get("token_embd.weight")) is not None:
        stated["vocab_size"] = embedding.shape[0]
    _state_layers(stated, own, table)
    rotation = _rotation(own, tensors, table, path)
    if rotation:
        rotation = {"rope_theta": stated.get("rope_theta", _LOCAL_BASE)} | rotation
        if table == _SCALES_TWO_WAYS:
            local = {"rope_type": "default", "rope_theta": _LOCAL_BASE}
            stated["rope_parameters"] = {"full_attention": rotation, "sliding_attention": local}
        else:
            stated["rope_parameters"] = rotation
    return stated


def architecture_of(header: Header, path: Path) -> str:
    """llama.cpp's name of the architecture.

    Raises:
        ModelError: the file does not state it.
    """
    found = header.metadata.get("general.architecture")
    if not isinstance(found, str):
        raise ModelError(f"{path} does not say general.architecture")
    return found


class _Own:
    """The keys that begin with the architecture's name."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._architecture = architecture

    def get(self, key: str) -> Any:
        """A value; None if it is not stated. A list of equal numbers for all layers becomes one
        number.
        """
        value = self._metadata.get(f"{self._architecture}.{key}")
        if isinstance(value, np.ndarray):
            values = value.tolist()
            return values[0] if values and len(set(values)) == 1 else values
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        return float(value) if isinstance(value, (int, float)) else default


def _state_layers(stated: dict[str, Any], own: _Own, table: str) -> None:
    """Set values that depend on several keys: kinds of layers, scales, gates."""
    layers = stated.get("num_hidden_layers")
    pattern = own.get("attention.sliding_window_pattern")
    if type(pattern) is bool:
        pattern = [pattern] * layers if isinstance(layers, int) else None
    if table in ("gemma2", "gemma3", "gpt_oss") and pattern is not None:
        if isinstance(pattern, int) and isinstance(layers, int):
            pattern = [bool((layer + 1) % pattern) for layer in range(layers)] if pattern else None
        if isinstance(pattern, list):
            kinds = ("full_attention", "sliding_attention")
            stated["layer_types"] = [kinds[bool(slides)] for slides in pattern]
    if table in _SCALED_BY_ALL and isinstance(stated.get("head_dim"), int):
        stated["query_pre_attn_scalar"] = stated["head_dim"]
        if layers == _SCALED_BY_ALL[table]:
            stated["query_pre_attn_scalar"] = stated["hidden_size"] // stated["num_attention_heads"]
    if table == "minimax_m2" and isinstance(stated.get("scoring_func"), int):
        stated["scoring_func"] = _GATES.get(stated["scoring_func"], "softmax")
    heads = stated.get("num_key_value_heads")
    if table == "lfm2":  # The layers without heads of keys are convolutions.
        each = heads if isinstance(heads, list) else [heads] * (layers or 0)
        stated["num_key_value_heads"] = max(each, default=0)
        stated["full_attn_idxs"] = [layer for layer, count in enumerate(each) if count]
        stated["block_auto_adjust_ff_dim"] = False


def _rotation(
    own: _Own, tensors: Mapping[str, StoredTensor], table: str, path: Path
) -> dict[str, Any]:
    """How positions are rotated, if it is not plain RoPE over the whole head.

    Raises:
        ModelError: its scaling is not supported.
    """
    found: dict[str, Any] = {}
    width = own.get("rope.dimension_count")
    if table in _PARTLY_ROTATED and isinstance(width, int):
        head = own.get("attention.key_length")
        if head is None and own.get("attention.head_count"):
            head = own.get("embedding_length") // own.get("attention.head_count")
        if isinstance(head, int) and head:
            found = {"rope_type": "default", "partial_rotary_factor": width / head}
    kind = own.get("rope.scaling.type")
    factor = own.number("rope.scaling.factor", own.number("rope.scale_linear", 0.0))
    if kind is None:
        kind = "linear" if factor not in (0.0, 1.0) else "none"
    trained = own.get("rope.scaling.original_context_length") or own.get("context_length")
    share = own.number("rope.scaling.attn_factor", 1.0)
    if _LONG in tensors and _SHORT in tensors and kind in ("none", "longrope"):
        return found | {
            "rope_type": "longrope",
            "long_factor": _numbers(tensors[_LONG]),
            "short_factor": _numbers(tensors[_SHORT]),
            "original_max_position_embeddings": trained,
            "attention_factor": share,
        }
    if _FREQUENCIES in tensors and kind == "none":
        # Llama 3.1 divides each frequency by its own factor, as LongRoPE does.
        factors = _numbers(tensors[_FREQUENCIES])
        return found | {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "original_max_position_embeddings": own.get("context_length"),
            "attention_factor": 1.0,
        }
    scaled = sorted({_FREQUENCIES, _LONG, _SHORT} & tensors.keys())
    if scaled or kind not in ("none", "linear", "yarn"):
        ways = " and ".join([*scaled, f"rope.scaling.type {kind!r}"])
        raise ModelError(
            f"{path} scales its positions by {ways}, which is not read; put the model's own "
            f"{CONFIG_FILE} beside it"
        )
    if kind == "none" or factor in (0.0, 1.0):
        return found
    if kind == "linear":
        return found | {"rope_type": "linear", "factor": factor}
    found |= {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": trained,
        "beta_fast": own.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": own.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    if share != 1.0:
        found["attention_factor"] = share * (1 + 0.1 * math.log(factor))
    if table == "gpt_oss":
        found["truncate"] = False  # as in the model itself
    return found


def _numbers(tensor: StoredTensor) -> list[float]:
    """Read a vector of the file.

    Raises:
        ModelError: it is not float32, or cannot be read.
    """
    if tensor.dtype != "F32":
        raise ModelError(f"{tensor.file} stores {tensor.name} as {tensor.dtype}; it must be F32")
    try:
        values = np.fromfile(tensor.file, "<f4", math.prod(tensor.shape), offset=tensor.offset)
    except OSError as error:
        raise ModelError(f"{tensor.file} cannot be read: {error.strerror}") from None
    if not np.isfinite(values).all() or (values <= 0).any():
        raise ModelError(f"{tensor.file} is corrupt: {tensor.name} holds factors of 0 or below")
    found: list[float] = values.astype(float).tolist()
    return found
