"""Of a model that takes images, only what text needs is built, read and counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    MllamaForCausalLM,
    MllamaTextConfig,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
)

from benchmarks.coverage.build import build
from benchmarks.coverage.rows import Kind, Row
from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.model.checks.gate import checked_forward, find_class
from engine.model.files.checkpoint import CONFIG_FILE, SINGLE_FILE
from engine.model.program.forward import ProgramForward
from engine.model.running.forward import ModuleForward
from engine.model.tracing.text_part import Reads, drop, text_config, without
from engine.model.tracing.trace import trace
from tests.support.checkpoints import END_ID, save_checkpoint
from tests.support.loading import load, weights_of
from tests.support.zoo import VOCAB_SIZE, WRAPPERS, tiny_config, tiny_model

UNREAD = {
    "gemma3": {"model.vision_tower", "model.multi_modal_projector"},
    "mistral3": {"model.vision_tower", "model.multi_modal_projector"},
    "qwen2_5_vl": {"model.visual"},
    "qwen3_vl": {"model.visual"},
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_trace_finds_what_text_does_not_read(name: str) -> None:
    config = tiny_config(name)
    traced = trace(find_class(config), config, torch.float32)
    assert set(traced.unread) == UNREAD[name]


def test_a_model_of_text_alone_needs_all_that_it_has() -> None:
    config = tiny_config("gemma3_text")
    assert trace(find_class(config), config, torch.float32).unread == ()


class Whole(nn.Module):
    """Of its parts, text reads one, asks one for its type, and calls one that reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Linear(2, 2)
        self.tower = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.join = Join()
        self.table = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.join(self.text(x.to(self.tower[0].weight.dtype)))
        return x @ self.table[1].weight


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_what_is_called_or_read_in_part_is_kept() -> None:
    model = Whole()
    with Reads(model) as read:
        model(torch.zeros(1, 2))
    assert read.unread() == ("tower", "join.images", "table.0")
    drop(model, (*read.unread(), "table.7.gone"))
    assert {key.rpartition(".")[0] for key in model.state_dict()} == {"text", "table.1"}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_class_without_some_modules_is_else_the_class(name: str) -> None:
    config = tiny_config(name)
    whole = find_class(config)
    text = without(whole, tuple(UNREAD[name]))
    traced = trace(whole, config, torch.float32)
    assert trace(text, config, torch.float32) == replace(traced, unread=())
    assert (text.__name__, text.__module__) == (whole.__name__, whole.__module__)
    lost = {
        key
        for key in tiny_model(name).state_dict()
        if key.startswith(tuple(f"{module}." for module in UNREAD[name]))
    }
    assert lost
    assert text(config).state_dict().keys() == tiny_model(name).state_dict().keys() - lost


def test_weights_have_no_place_in_a_module_that_was_let_go_of() -> None:
    config = tiny_config("mistral3")
    text = without(find_class(config), ("model.vision_tower",))(config)
    # A tensor may hold weights of several modules, and transformers looks for all of them.
    place = text.get_submodule("model.vision_tower.transformer.layers.0")
    assert (place.weight, place.bias) == (None, None)
    assert text.get_submodule("lm_head") is text.lm_head
    for name in ("model.vision", "model.nowhere"):
        with pytest.raises(AttributeError):
            text.get_submodule(name)


@pytest.mark.usefixtures("encodes_here", "modules")
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_rest_is_neither_read_nor_counted(tmp_path: Path, name: str) -> None:
    expected = save_checkpoint(tmp_path, name).state_dict()
    loaded = load(tmp_path)
    found = weights_of(loaded).state_dict()
    assert not any(key.startswith(tuple(UNREAD[name])) for key in found)
    assert found.keys() == {key for key in expected if not key.startswith(tuple(UNREAD[name]))}
    assert all(torch.equal(found[key], expected[key]) for key in found)
    assert loaded.card.num_params == sum(value.numel() for value in found.values())


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_layers_that_text_passes_by_are_let_go_of(backend: str) -> None:
    config = MllamaTextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        cross_attention_layers=[1, 3],  # to what an image gives
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=0,
    )
    traced = trace(MllamaForCausalLM, config, torch.float32)
    assert traced.unread == ("model.layers.1", "model.layers.3")
    assert traced.shape.num_layers == 2
    model = without(MllamaForCausalLM, traced.unread)(config)
    assert traced.num_elements < sum(one.numel() for one in MllamaForCausalLM(config).parameters())
    envelope = EngineConfig(num_blocks=16, max_model_len=64, dtype="float32")
    forward = checked_forward(model, envelope, traced.shape, backend)
    assert isinstance(forward, ProgramForward if backend == "cpu" else ModuleForward)


def test_of_layers_that_are_called_and_do_not_attend_none_is_let_go_of() -> None:
    config = CONFIG_MAPPING["recurrent_gemma"](
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        lru_width=64,
        vocab_size=VOCAB_SIZE,
        block_types=["recurrent", "recurrent", "attention"],
    )
    with pytest.raises(ModelError, match="it attends in 1 layers and its config has 3"):
        trace(find_class(config), config, torch.float32)


@pytest.mark.usefixtures("encodes_here", "modules")
def test_of_several_models_in_a_folder_the_one_for_text_is_served(tmp_path: Path) -> None:
    build(Row(Kind.WRAPPER, "qwen2_5_omni_thinker"), tmp_path)
    folder = tmp_path / "model"
    alone = load(folder)
    expected = weights_of(alone).state_dict()
    alone.close()
    stated = json.loads((folder / CONFIG_FILE).read_text())
    of_part = stated | {"architectures": ["TheThinker"]}
    whole = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni"}
    (folder / CONFIG_FILE).write_text(json.dumps(whole | {"thinker_config": of_part}))
    weights = {f"thinker.{key}": value for key, value in load_file(folder / SINGLE_FILE).items()}
    save_file(weights | {"talker.codec_head.weight": torch.ones(4, 4)}, folder / SINGLE_FILE)
    loaded = load(folder)
    assert loaded.card.architecture == "Qwen2_5OmniThinkerForConditionalGeneration"
    found = weights_of(loaded).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)
    loaded.close()


@pytest.mark.usefixtures("encodes_here")
def test_weights_may_be_missing_where_text_does_not_need_them(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "mistral3")
    file = tmp_path / SINGLE_FILE
    stored = load_file(file)
    text = {key: value for key, value in stored.items() if "vision" not in key}
    assert len(text) < len(stored)
    save_file(text, file)
    load(tmp_path).close()
    lost = next(key for key in text if key.endswith("layers.1.self_attn.k_proj.weight"))
    save_file({key: value for key, value in text.items() if key != lost}, file)
    with pytest.raises(ModelError, match=r"lacks the weights .*layers\.1\.self_attn\.k_proj"):
        load(tmp_path)


@pytest.mark.usefixtures("encodes_here")
def test_ends_of_the_text_part_count_where_the_whole_names_none(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "mistral3", eos_token_id=7)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert load(tmp_path).eos_token_ids == {7, END_ID}
    config = json.loads((tmp_path / CONFIG_FILE).read_text())
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config | {"eos_token_id": 9}))
    assert load(tmp_path).eos_token_ids == {9, END_ID}


@pytest.mark.parametrize(
    ("model_class", "kind", "part"),
    [
        (Qwen3_5ForCausalLM, "qwen3_5", "qwen3_5_text"),
        (LlavaForConditionalGeneration, "llava", "llava"),
        (LlamaForCausalLM, "llama", "llama"),
    ],
)
def test_a_class_of_text_alone_takes_the_text_part(
    model_class: type[PreTrainedModel], kind: str, part: str
) -> None:
    assert text_config(model_class, CONFIG_MAPPING[kind]()).model_type == part
