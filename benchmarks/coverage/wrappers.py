"""Wrappers: types whose text model stands beside towers for pictures, sound or video."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from benchmarks.coverage.texts import TEXTS
from benchmarks.coverage.tiny import HEAD_DIM, HEADS, HIDDEN, VOCAB_SIZE, WINDOW, tiny_values

_UNUSED = VOCAB_SIZE - 20
_MROPE_SECTION = [4, 2, 2]
_HALF_MROPE = [2, 1, 1]  # of half as many


def _rope(section: list[int], *, rotated: float = 1.0) -> dict[str, Any]:
    """Positions of several axes: how many numbers each turns, of the rotated part of a head."""
    return {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": rotated,
        "mrope_section": section,
    }


WRAPPERS: dict[str, Mapping[str, Any]] = {
    name: {}
    for name in (
        *("gemma3", "gemma3n", "gemma4", "gemma4_unified", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
        *("mistral3", "mistral4", "llama4", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"),
        *("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "glm4v", "glm4v_moe", "glm46v"),
        *("glm5_next", "kimi_k25", "internvl", "llava", "llava_next", "llava_onevision"),
        *("idefics3", "smolvlm", "lfm2_vl", "lfm3_vl", "cohere2_vision", "aya_vision"),
        *("ernie4_5_vl_moe", "exaone4_5", "minimax_m3_vl", "mllama", "paligemma", "step3p7"),
        *("nemotron_h_omni", "mistral_large4", "ovis2", "molmo2", "phi4_multimodal"),
        *("deepseek_vl", "muse_spark", "inkling_mm_model", "inkling2", "minicpmv4_6"),
        *("hunyuan_vl", "fuyu", "dots3_note", "diffusion_gemma", "emu3", "cohere_compass"),
        "janus",
    )
} | {
    "mistral4": {"num_key_value_heads": HEADS, "qk_nope_head_dim": 8, "head_dim": HEAD_DIM},
    "glm5_next": {
        "text_config": {"num_key_value_heads": HEADS, "qk_rope_head_dim": 0, "head_dim": HEAD_DIM}
    },
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "molmo2": {
        "vision_config": {"image_size": [32, 32]},
        "adapter_config": {"vision_feature_layer": [1, 0]},
    },
    "inkling2": {"vision_config": {"text_hidden_size": HIDDEN}},
    # The code of these reads it, and their classes have no default for it.
    "qwen2_5_omni_thinker": {"vision_start_token_id": _UNUSED},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": _UNUSED},
    "glm4v_moe": {"text_config": {"rope_parameters": _rope(_HALF_MROPE, rotated=0.5)}},
    "ernie4_5_vl_moe": {
        "text_config": {"moe_intermediate_size": [32, 16], "rope_parameters": _rope([3, 3, 2])}
    },
    "hunyuan_vl": {
        "text_config": {
            "head_dim": HEAD_DIM,
            "rope_parameters": _rope([2, 2, 2, 2])
            | {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0},
        },
    },
    "step3p7": {"text_config": {"sliding_window": WINDOW}},
    "muse_spark": {
        "out_hidden_size": HIDDEN,
        "projector_hidden_size": HIDDEN,
        "audio_config": {"num_hidden_layers": 4, "hidden_sizes": [16, 16, 16, 32]},
    },
    "emu3": {
        "vocabulary_map": {
            "<image>": VOCAB_SIZE - 1,
            "<|extra_200|>": VOCAB_SIZE - 2,
            **{f"<|visual token {i:06d}|>": _UNUSED - i for i in range(8)},
        },
        "vq_config": {"base_channels": 32, "codebook_size": 8},
    },
}
"""What overrides the values of each type's outermost configuration, and of those inside it."""

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# These rotate by three positions, whether or not the default says how many numbers each turns.
_MROPE = {"qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "glm4v", "glm4v_moe", "glm46v"}

_TOWER: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "embed_dim", "hidden_dim", "image_size"), 32),
    **dict.fromkeys(("out_hidden_size", "projection_dim", "intermediate_size"), HIDDEN),
    **dict.fromkeys(("projector_input_dim", "projector_output_dim"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "depth"), 2),
    **dict.fromkeys(("num_heads", "num_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "num_position_embeddings"), 16),
    **dict.fromkeys(("encoder_layers", "encoder_attention_heads"), 2),
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "output_dim"), HIDDEN),
    "patch_size": 8,
    "vision_output_dim": HIDDEN,
    "num_global_layers": 1,
    "num_channels": 3,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [1],
}


def wrapper_config(model_type: str, overrides: Mapping[str, Any]) -> PreTrainedConfig:
    """A configuration with a tiny text model, tiny towers, and the tokens that stand for pictures
    at the end of the vocabulary.

    Raises:
        Exception: the class refuses it, each in its own way.
    """
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    values: dict[str, Any] = {}
    for part, part_class in config_class.sub_configs.items():
        inner = getattr(default, part, None)
        if part in _TEXT_PARTS:
            values[part] = _text_values(model_type, inner, part_class)
        elif inner is not None:
            known = inner.to_dict()
            tower = {key: value for key, value in _TOWER.items() if key in known}
            values[part] = tower | {"model_type": inner.model_type}
    stated = default.to_dict()
    for place, key in enumerate(key for key in stated if _is_marker(key, stated[key])):
        values[key] = VOCAB_SIZE - 1 - place
    for key, value in tiny_values(config_class, {}).items():
        if key in stated:
            values.setdefault(key, value)
    for key, value in overrides.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    config: PreTrainedConfig = config_class(**values)
    return config


def _text_values(model_type: str, inner: Any, part_class: Any) -> dict[str, Any]:
    kind = getattr(inner, "model_type", None)
    text_class = part_class if inner is None else type(inner)
    values = tiny_values(text_class, TEXTS.get(kind or "") or {})
    rope = {} if inner is None else dict(inner.to_dict().get("rope_parameters") or {})
    if "rope_parameters" not in values and ("mrope_section" in rope or model_type in _MROPE):
        values["rope_parameters"] = rope | {"mrope_section": _MROPE_SECTION}
    return values | {"model_type": kind}


def _is_marker(key: str, value: object) -> bool:
    """Whether a key states the token that stands for a picture, a sound or the like."""
    is_token = key.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    return is_token and key not in _ENDS
