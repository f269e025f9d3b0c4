"""The gate lets in what is computed right, and refuses the rest with the reason."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    PreTrainedModel,
)

from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.batch.shape import LayerHeads
from engine.cache.storage import cache_shapes, places
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams
from engine.model.attention.torch_backend import TorchAttention
from engine.model.checks import gate
from engine.model.checks.gate import checked_forward, find_class
from engine.model.checks.script import Script
from engine.model.program.capture import NUM_TOKENS
from engine.model.tracing.rope import freeze_rope
from engine.model.tracing.trace import trace
from tests.support.zoo import (
    BY_MODULES,
    MAX_LEN,
    MIXED,
    SERVED,
    STATEFUL,
    VOCAB_SIZE,
    WINDOW,
    tiny_config,
    tiny_model,
)

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [2.0 + 0.5 * i for i in range(6)],
    "original_max_position_embeddings": 32,
}
LONGROPE_CONFIG = {
    "rope_parameters": LONGROPE,
    "max_position_embeddings": 128,
    "original_max_position_embeddings": 32,
}


def admit(model: PreTrainedModel, max_model_len: int = MAX_LEN, backend: str | None = None) -> None:
    """All that a model has to pass."""
    config = model.config
    traced = trace(find_class(config), config, model.dtype)
    freeze_rope(model, max_model_len)
    config = EngineConfig(
        num_blocks=16, max_model_len=max_model_len, dtype=str(model.dtype).removeprefix("torch.")
    )
    # A program takes the weights of its model.
    checked_forward(copy.deepcopy(model), config, traced.shape, backend)


def refusal(model: PreTrainedModel, backend: str | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        admit(model, backend=backend)
    return caught.value.message


def eager_logits(model: PreTrainedModel, length: int) -> Tensor:
    token_ids = torch.arange(length)[None] * 37 % VOCAB_SIZE
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: Tensor = model(input_ids=token_ids, use_cache=False).logits
    return logits


# `tests/engine/model/program/test_forward.py` has those that a program computes.
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, None) for name in (*STATEFUL, *BY_MODULES)),
        *((name, "torch") for name in ("llama", "mixtral", "gemma2", "gpt_oss", *MIXED)),
    ],
)
def test_supported_architectures_pass(name: str, backend: str | None) -> None:
    admit(tiny_model(name), backend=backend)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("qwen3_next", None), ("lfm2", None), ("mamba2", None), ("llama", "torch")],
)
def test_coarse_types_pass(name: str, backend: str | None) -> None:
    admit(tiny_model(name, dtype=torch.bfloat16), backend=backend)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llama4", "Llama4ForCausalLM is not supported: it has layers of chunked_attention"),
        ("t5", "t5 is not supported: it is an encoder with a decoder"),
        ("vit", "vit is not supported: transformers has no causal language model for it"),
        ("rwkv", "RwkvForCausalLM is not supported: its attention cannot be replaced"),
        ("bloom", "BloomForCausalLM is not supported: its attention cannot be replaced"),
        ("llama4_text", "Llama4ForCausalLM is not supported: it has layers of chunked_attention"),
    ],
)
def test_other_kinds_of_model_are_refused(kind: str, expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        find_class(CONFIG_MAPPING[kind]())
    assert caught.value.message.startswith(expected)


def test_another_head_than_a_language_model_is_refused() -> None:
    config = tiny_config("llama", architectures=["LlamaForSequenceClassification"])
    with pytest.raises(ModelError, match="LlamaForSequenceClassification is not supported"):
        find_class(config)


def test_the_trace_alone_finds_states_that_no_cache_is_asked_for() -> None:
    config = AutoConfig.for_model(
        "recurrent_gemma",
        num_hidden_layers=3,
        hidden_size=48,
        lru_width=48,
        intermediate_size=96,
        num_attention_heads=4,
        vocab_size=128,
    )
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with pytest.raises(ModelError, match="it attends in 1 layers and its config has 3"):
        trace(model_class, config, torch.float32)


def test_layers_of_different_heads_lie_in_parts_of_the_pool() -> None:
    model = tiny_model("gemma4_text")
    shape = trace(type(model), model.config, torch.float32).shape
    sliding, full = LayerHeads(4, 2, 16, 16), LayerHeads(4, 1, 32, 32)
    assert shape.mixed == (sliding, full, full)
    assert (shape.num_kv_heads, shape.head_dim) == (2, 32), "the largest"
    assert shape.sources == (0, 1, 1), "the last layer has keys and values of the one before"
    assert shape.kv_bytes_per_token == 4 * (2 * 32 + 64)
    parts = cache_shapes(EngineConfig(num_blocks=7, max_model_len=MAX_LEN), shape)
    assert [(one.num_layers, one.num_kv_heads, one.head_dim) for one in parts] == [
        (1, 2, 16),
        (1, 1, 32),
    ]
    assert places(shape) == [(0, 0), (1, 0), (1, 0)]


@pytest.mark.parametrize("name", SERVED)
def test_traced_shape_is_the_models(name: str) -> None:
    model = tiny_model(name)
    shape = trace(type(model), model.config, torch.bfloat16).shape
    assert shape.num_params == sum(p.numel() for p in model.parameters())
    assert shape.dtype_bytes == 2
    assert shape.num_layers == model.config.num_hidden_layers
    sliding = {"mistral", "mixtral", "phi3", "starcoder2"}
    kinds = getattr(model.config, "layer_types", None)
    if name in sliding:
        assert shape.windows == (WINDOW,) * 3
    elif kinds is not None:
        assert shape.windows == tuple(WINDOW if "sliding" in kind else None for kind in kinds)
    else:
        assert shape.windows == (None,) * 3


def test_a_model_that_looks_for_padding_is_traced() -> None:
    config = tiny_config("gpt2", pad_token_id=0)
    assert trace(find_class(config), config, torch.float32).shape.num_layers == 3
    assert config.pad_token_id == 0


def test_shape_of_a_dense_model_by_hand() -> None:
    shape = trace(find_class(c := tiny_config("llama")), c, torch.float32).shape
    # Of one layer: queries and output 48x48, keys and values 24x48 each, and three of 80x48.
    assert shape.num_active_params == 3 * (2 * 48 * 48 + 2 * 24 * 48 + 3 * 80 * 48)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.value_dim) == (4, 2, 12, 12)
    assert (shape.hidden_size, shape.vocab_size) == (48, VOCAB_SIZE)


def test_shape_counts_the_chosen_experts_only() -> None:
    shape = trace(find_class(c := tiny_config("qwen3_moe")), c, torch.float32).shape
    attention = 2 * 64 * 48 + 2 * 32 * 48
    router, expert = 4 * 48, 3 * 32 * 48
    assert shape.num_active_params == 3 * (attention + router + 2 * expert)


def test_latent_attention_has_one_head_whose_values_are_in_its_keys() -> None:
    config = AutoConfig.for_model(
        "deepseek_v3",
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        vocab_size=64,
    )
    shape = trace(find_class(config), config, torch.float32).shape
    assert (shape.num_heads, shape.num_kv_heads) == (4, 1)
    assert (shape.head_dim, shape.value_dim, shape.value_in_key) == (512 + 64, 512, True)


class Wrong(TorchAttention):
    """Forgets what the parameters in `forgets` ask for."""

    forgets: dict[str, Any]

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        return super().attend(query, layer, context, replace(params, **self.forgets))


@pytest.mark.parametrize(
    ("name", "forgets", "changes"),
    [
        ("llama", {"scaling": 1.0}, {}),
        ("gemma2", {"softcap": None}, {}),
        ("gpt_oss", {"sinks": None}, {}),
        # The windows (100) are longer than the test's sequences: the small model finds it.
        ("mistral", {"window": None}, {"sliding_window": 100}),
        ("gemma3_text", {"window": None}, {"sliding_window": 100}),
        ("gpt_oss", {"window": None}, {"sliding_window": 100}),
    ],
)
def test_wrong_attention_is_found(
    name: str, forgets: dict[str, Any], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = type("Wrong", (Wrong,), {"forgets": forgets})
    monkeypatch.setattr("engine.model.running.forward.TorchAttention", wrong)
    assert "with paged attention its logits differ from its own by" in refusal(
        tiny_model(name, **changes), "torch"
    )


def test_bidirectional_attention_is_found() -> None:
    config = AutoConfig.for_model(
        "bert",
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        is_decoder=False,
    )
    model = find_class(config)._from_config(config).eval()
    assert "is not supported" in refusal(model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    model = tiny_model("llama", dtype=torch.float16)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 4] = value
    assert refusal(model) == (
        "LlamaForCausalLM gives logits that are not finite in torch.float16; bfloat16 holds larger "
        "numbers"
    )


@pytest.mark.parametrize(("max_model_len", "length"), [(32, 32), (128, 100)])
def test_longrope_is_frozen_to_the_factors_of_its_length(max_model_len: int, length: int) -> None:
    model = tiny_model("phi3", **copy.deepcopy(LONGROPE_CONFIG))
    admit(model, max_model_len)
    untouched = tiny_model("phi3", **copy.deepcopy(LONGROPE_CONFIG))
    torch.testing.assert_close(eager_logits(model, length), eager_logits(untouched, length))


def test_frozen_longrope_keeps_its_factors_for_short_sequences() -> None:
    long, short = (tiny_model("phi3", **copy.deepcopy(LONGROPE_CONFIG)) for _ in range(2))
    freeze_rope(long, 128)
    freeze_rope(short, 32)
    beginning = eager_logits(long, 100)[:, :20]
    torch.testing.assert_close(eager_logits(long, 20), beginning)
    assert not torch.allclose(eager_logits(short, 20), beginning, atol=0.1)


def test_rope_that_looks_at_values_in_its_own_way_is_refused() -> None:
    config = AutoConfig.for_model(
        "phimoe",
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        max_position_embeddings=128,
        rope_parameters=LONGROPE | {"short_mscale": 1.0, "long_mscale": 1.2},
    )
    with pytest.raises(ModelError, match="PhimoeForCausalLM is not supported: its forward pass"):
        trace(find_class(config), config, torch.float32)


def test_rope_that_stays_dependent_on_the_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("phi3", **copy.deepcopy(LONGROPE_CONFIG))
    monkeypatch.setattr("engine.model.tracing.rope._set_kind", lambda *_: None)
    with pytest.raises(ModelError, match="depends on the longest position in the same step"):
        freeze_rope(model, 128)


def test_dynamic_rope_is_right_beyond_the_trained_length() -> None:
    """Its base is that of a sequence which fills the context."""
    model, untouched = tiny_model("llama_dynamic_rope"), tiny_model("llama_dynamic_rope")
    longest = 4 * model.config.max_position_embeddings
    admit(model, longest)
    torch.testing.assert_close(eager_logits(model, longest), eager_logits(untouched, longest))
    short = eager_logits(tiny_model("llama_dynamic_rope"), 20)
    assert not torch.allclose(eager_logits(model, 20), short, atol=0.01)


def test_dynamic_rope_is_right_up_to_the_trained_length() -> None:
    model = tiny_model("llama_dynamic_rope")
    trained = model.config.max_position_embeddings
    admit(model, trained)
    untouched = tiny_model("llama_dynamic_rope")
    torch.testing.assert_close(eager_logits(model, trained), eager_logits(untouched, trained))


def test_self_test_is_a_few_short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass over 8 billion parameters takes 0.7 s on a small host."""
    model = tiny_model("llama", dtype=torch.bfloat16, num_hidden_layers=6, hidden_size=256)
    shape = trace(type(model), model.config, torch.bfloat16).shape
    config = EngineConfig(num_blocks=16, max_model_len=MAX_LEN, dtype="bfloat16")
    passes: list[int] = []
    forward, played = type(model).forward, gate.play

    def by_modules(self: PreTrainedModel, input_ids: Tensor, **named: Any) -> Any:
        if self is model:
            passes.append(input_ids.numel())
        return forward(self, input_ids, **named)

    def play(its: PreTrainedModel, *rest: Any, **apart: Any) -> Any:
        if its is model:
            script = next(one for one in rest if isinstance(one, Script))
            passes.extend(step.plan.num_tokens for step in script.steps)
        return played(its, *rest, **apart)

    monkeypatch.setattr(type(model), "forward", by_modules)
    monkeypatch.setattr(gate, "play", play)
    checked_forward(model, config, shape)
    # Its steps; then two sequences run by eager attention, and it is read as a program. All else
    # is for the small model of its class.
    assert passes == [8, 29, 3, 40, NUM_TOKENS]
