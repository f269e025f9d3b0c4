"""Tiny random models of the architectures that are served or refused, for parity and gate tests."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

VOCAB_SIZE = 128
MAX_LEN = 256
WINDOW = 20  # below the test sequences' lengths and no multiple of the block size

# At 0.02, the usual value, attention is nearly uniform and many outputs repeat one token.
INITIALIZER_RANGE = 0.25

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": INITIALIZER_RANGE,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

_SPARSE_LINEAR = ["linear_attention", "full_attention", "linear_attention"]
_FULL = ["full_attention"] * 3
_SPARSE_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

SERVED: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
    },
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "mistral": {"sliding_window": WINDOW},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "gemma2": {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
    },
    "gemma3_text": {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
    },
    "phi3": {"sliding_window": WINDOW},
    "olmo2": {},
    "smollm3": {
        "no_rope_layers": [1, 0, 1],
        "layer_types": ["full_attention"] * 3,
        # Of the weights that 80 brings, outputs repeat one token.
        "intermediate_size": 96,
    },
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.0,
    },
    "gpt_oss": {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": MAX_LEN // 4,
        },
    },
    "starcoder2": {"sliding_window": WINDOW, "use_bias": True},
    "gpt2": {"n_positions": MAX_LEN},
}
"""Architectures that must be served; the values override the common dimensions."""

STATEFUL: dict[str, dict[str, Any]] = {
    # Short convolutions.
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    # Gated delta nets.
    "qwen3_next": {
        "head_dim": 16,
        "layer_types": _SPARSE_LINEAR,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    # Lightning attention.
    "minimax": {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "block_size": 16,
        "layer_types": _SPARSE_LINEAR,
    },
    # Mamba 2, beside attention and alone.
    "bamba": {
        "attn_layer_indices": [1],
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    },
    "mamba2": {
        "num_heads": 6,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 2,
        "chunk_size": 16,
    },
    # Mamba, whose chunks start anew in transformers.
    "jamba": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    },
}
"""Architectures with states beside attention that must be served."""

LATENT: dict[str, dict[str, Any]] = {
    "glm4_moe_lite": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    # Queries without latents, and rotations by complex numbers.
    "deepseek_v2": {
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    # Rotations by halves.
    "minicpm3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
}
"""Architectures whose cache is latents, of which keys and values of heads are made."""

BY_MODULES: dict[str, dict[str, Any]] = {
    "stablelm": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "nemotron": {"head_dim": 16},
}
"""Architectures that are served module by module: attention that hands no arguments down."""

MIXED: dict[str, dict[str, Any]] = {
    # The last layer has keys and values of an earlier one.
    "gemma4_text": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "num_kv_shared_layers": 1,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "per_layer_config": {key: {"head_dim": 32, "num_key_value_heads": 1} for key in "12"},
    },
    # Query heads differ in number, and each one's output is gated by one number.
    "laguna": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
        "num_attention_heads_per_layer": [6, 4, 6],
        "mlp_layer_types": ["dense", "sparse", "dense"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    # Values are shorter than keys, and windows have sinks.
    "mimo_v2_flash": {
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
        "mlp_layer_types": ["dense", "sparse", "dense"],
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
"""Architectures whose layers differ in the number or the size of their heads."""

OTHERS: dict[str, dict[str, Any]] = {
    # Queries and keys are normed once they are rotated, NanoChat's the other way round.
    "hunyuan_v1_dense": {"head_dim": 16},
    "nanochat": {"head_dim": 16},
    # Positions begin at the third row of their table.
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 64},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": MAX_LEN // 4,
            "llama_4_scaling_beta": 0.5,
        },
    },
    # Tables of sines, then of cosines, for a part of each head; and columns in four runs of heads.
    "gptj": {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": MAX_LEN, "rotary_dim": 8},
    "codegen": {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": MAX_LEN, "rotary_dim": 8},
    # Each head's query, key and value are beside each other, and a quarter of a head is rotated.
    "gpt_neox": {},
    "ernie4_5": {"head_dim": 16},
    "flint": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "layer_types": _FULL,
    },
    # Groups of experts, corrected scores, and an expert that all share.
    # An expert that all share, with a gate of one number for each row.
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
    },
    "glm4_moe": {
        "head_dim": 16,
        "n_routed_experts": 12,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "routed_scaling_factor": 2.5,
        "partial_rotary_factor": 0.5,
    },
    "llama_dynamic_rope": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        "max_position_embeddings": 32,
    },
}
"""Architectures that do more to queries than to rotate them, or compute parts in float32 whatever
type they have."""

_LATENT_BESIDE_STATES: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "model_max_length": MAX_LEN,
    "layer_types": _SPARSE_LINEAR,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "linear_num_heads": 4,
    "linear_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}

BY_TORCH: dict[str, dict[str, Any]] = {
    # A bias for each head is added to its gate, and queries are scaled by position.
    "beam": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    # Sines and cosines of positions are added to embeddings.
    "ctrl": {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": MAX_LEN, "dff": 80},
    # Queries, keys and values have a limit.
    "dbrx": {
        "d_model": 48,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": MAX_LEN,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 10000.0},
        "ffn_config": {
            "ffn_hidden_size": 32,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": 48,
        },
    },
    # Several streams of each token are mixed, and changed in part.
    "gemma3n_text": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "intermediate_size": [80] * 3,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0],
    },
    # Latents beside states, which a delta rule decays in each column.
    "kimi_linear": _LATENT_BESIDE_STATES,
    "bailing_hybrid": {**_LATENT_BESIDE_STATES, "num_expert_group": 1, "q_lora_rank": 24},
    # Two parts of a latent's queries have scales of their own.
    "longcat_flash": {
        "num_layers": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "head_dim": 8,
        "ffn_hidden_size": 80,
        "expert_ffn_hidden_size": 32,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    # States of an embedding are joined with those of a layer; all layers share the attention.
    "zamba": {
        "attention_hidden_size": 96,
        "attention_head_dim": 24,
        "num_key_value_heads": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "mamba_d_state": 16,
        "mamba_dt_rank": 8,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        "attention_hidden_size": 96,
        "attention_head_dim": 24,
        "num_key_value_heads": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "hybrid_layer_ids": [1, 3],
        "num_hidden_layers": 4,
        "mamba_headdim": 16,
        "n_mamba_heads": 6,
        "mamba_d_state": 16,
        "mamba_ngroups": 1,
        "chunk_size": 16,
        "adapter_rank": 8,
    },
    # A convolution over tokens makes queries and keys, whose lengths and temperatures are set.
    "zaya": {
        "head_dim": 12,
        "layer_types": ["hybrid"] * 3,
        "router_hidden_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
    },
}
"""Architectures of which torch computes calls between kernels, in modules that attend."""

_AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}

WRAPPERS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": WINDOW,
        "layer_types": _SPARSE_SLIDING,
    },
    "mistral3": {"head_dim": 16},
    "qwen2_5_vl": {"hidden_size": 64, "rope_parameters": _AXES, "layer_types": _FULL},
    "qwen3_vl": {"head_dim": 16, "rope_parameters": _AXES},
}
"""Models that take images, of which the text is served; the values override those of their text."""

MORE_WRAPPERS: dict[str, dict[str, Any]] = {
    "aya_vision": {"layer_types": _FULL},
    "deepseek_vl": {},
    "glm4v": {
        "hidden_size": 64,
        "rope_parameters": _AXES | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
    },
    "internvl": {"layer_types": _FULL},
    "llava": {},
    "paligemma": {"head_dim": 16},
    "qwen3_vl_moe": {
        "head_dim": 16,
        "rope_parameters": _AXES,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "initializer_range": 0.5,
    },
    "smolvlm": {},
}
"""More of them, for the long tests."""

_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_heads": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 48,
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
}


def tiny_config(name: str, **changes: Any) -> PreTrainedConfig:
    """The configuration of a model of the zoo; `changes` override single values of its text."""
    if name in WRAPPERS | MORE_WRAPPERS:
        return _wrapped(name, _COMMON | (WRAPPERS | MORE_WRAPPERS)[name] | changes)
    overrides = (SERVED | STATEFUL | LATENT | BY_MODULES | MIXED | OTHERS | BY_TORCH)[name]
    model_type = "llama" if name == "llama_dynamic_rope" else name
    return AutoConfig.for_model(model_type, **(_COMMON | overrides | changes))


def _wrapped(name: str, text: dict[str, Any]) -> PreTrainedConfig:
    """A configuration of two parts. Of the tower, what its kind has is set."""
    whole = AutoConfig.for_model(name)
    tower = whole.vision_config.to_dict()
    small = _TOWER | {"out_hidden_size": text["hidden_size"]}
    return type(whole)(
        text_config=text | {"model_type": whole.text_config.model_type},
        vision_config={k: v for k, v in small.items() if k in tower}
        | {"model_type": whole.vision_config.model_type},
        tie_word_embeddings=False,
        image_token_id=VOCAB_SIZE - 1,
    )


def tiny_model(
    name: str,
    *,
    attn_implementation: str = "eager",
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> PreTrainedModel:
    """A random model of the zoo; the same name gives the same weights each time.

    Biases and norms are random too: at the zeros and ones that they start from, a test could not
    tell whether they are used.
    """
    config = tiny_config(name, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(name.encode()))
        is_wrapper = name in WRAPPERS | MORE_WRAPPERS
        auto = AutoModelForMultimodalLM if is_wrapper else AutoModelForCausalLM
        model = auto.from_config(config, attn_implementation=attn_implementation)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(dtype).eval()
