"""Named devices and shapes, and what of a model fits on a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
)

from benchmarks.model_387m import make_config
from engine.api.errors import InvalidConfigError, ModelError
from engine.model.tracing.trace import trace
from engine.simulation.devices import DEVICES, named_device
from engine.simulation.shapes import SHAPES, named_shape
from engine.simulation.simulation import envelope

LLAMA = {"num_key_value_heads": 8, "vocab_size": 128256, "num_attention_heads": 32}
CASES: dict[str, tuple[type[PreTrainedModel], PreTrainedConfig]] = {
    "llama-8b": (
        LlamaForCausalLM,
        LlamaConfig(**LLAMA, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32),
    ),
    "llama-70b": (
        LlamaForCausalLM,
        LlamaConfig(
            **LLAMA | {"num_attention_heads": 64},
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
        ),
    ),
    "mistral-7b": (MistralForCausalLM, MistralConfig(sliding_window=4096)),
    "opt-13b": (
        OPTForCausalLM,
        OPTConfig(
            hidden_size=5120,
            word_embed_proj_dim=5120,
            ffn_dim=20480,
            num_hidden_layers=40,
            num_attention_heads=40,
        ),
    ),
    "qwen-0.5b": (Qwen2ForCausalLM, make_config(vocab_size=151936)),
    "387m": (Qwen2ForCausalLM, make_config()),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_shape_is_that_of_the_model(name: str) -> None:
    """Against transformers' own class, built without weights."""
    model_class, config = CASES[name]
    assert named_shape(name) == trace(model_class, config, torch.bfloat16).shape


def test_opt_13b_leaves_an_a100_as_much_as_is_published() -> None:
    """About 1 MB a token; 14,336 token slots or so beside the weights on 40 GB (Anyscale 2023)."""
    config = envelope(named_device("a100-40gb"), named_shape("opt-13b"), max_model_len=2048)
    assert named_shape("opt-13b").kv_bytes_per_token == 819_200
    assert 13_000 < config.num_slots < 17_000


def test_the_pool_takes_what_the_weights_leave() -> None:
    device, shape = named_device("h100"), named_shape("llama-8b")
    config = envelope(device, shape, max_model_len=8192, memory_share=0.5)
    block_bytes = config.block_size * shape.kv_bytes_per_token
    spare = device.memory / 2 - shape.weight_bytes
    assert 0 <= spare - config.num_blocks * block_bytes < 2 * block_bytes
    assert config.dtype == "bfloat16"


def test_the_number_of_slots_can_be_stated() -> None:
    shape = named_shape("opt-13b")
    config = envelope(named_device("a100-40gb"), shape, max_model_len=2048, kv_slots=14_336)
    assert config.num_slots == 14_336
    with pytest.raises(InvalidConfigError, match=r"kv_slots is 100; it must be at least"):
        envelope(named_device("a100-40gb"), shape, max_model_len=2048, kv_slots=100)
    with pytest.raises(InvalidConfigError, match=r"kv_slots is 47; it must be at least 48, which"):
        envelope(named_device("a100-40gb"), shape, max_model_len=40, kv_slots=47)
    assert envelope(named_device("a100-40gb"), shape, max_model_len=40, kv_slots=48).num_blocks == 3


def test_a_model_that_does_not_fit_says_why() -> None:
    with pytest.raises(ModelError, match=r"does not fit on h100: of its 80 GiB 90%.*131\.4 GiB"):
        envelope(named_device("h100"), named_shape("llama-70b"), max_model_len=2048)


def test_unknown_names_are_answered_with_those_allowed() -> None:
    with pytest.raises(InvalidConfigError, match=r"device is 'h1000'; it must be one of h100, "):
        named_device("h1000")
    with pytest.raises(InvalidConfigError, match=r"model is 'gpt'; it must be one of llama-8b, "):
        named_shape("gpt")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peak_flops", 0.0),
        ("matmul_efficiency", 0.0),
        ("bandwidth_efficiency", 1.1),
        ("step_overhead", -1.0),
    ],
)
def test_a_device_checks_its_figures(field: str, value: float) -> None:
    with pytest.raises(InvalidConfigError, match=f"^{field} is "):
        replace(DEVICES["h100"], **{field: value})
    with pytest.raises(InvalidConfigError, match=r"memory_share is 2; it must be"):
        envelope(DEVICES["h100"], SHAPES["llama-8b"], max_model_len=1, memory_share=2)
