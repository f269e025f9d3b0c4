"""Each format of quantized checkpoints through the loader and the core, against its library."""

from __future__ import annotations

import copy
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    Mxfp4Config,
    PreTrainedModel,
)

from engine.api.client import ChatMessage, Submission
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.core.core import EngineCore
from engine.model.files.checkpoint import open_checkpoint
from engine.model.files.size_text import format_bytes
from engine.model.loading import plan
from engine.serving.loading import LoadedModel
from tests.support.checkpoints import END_ID
from tests.support.gguf_files import save_gguf
from tests.support.loading import Recorded, load, refusal, weights_of
from tests.support.quantized import FORMATS, save_quantized
from tests.support.zoo import VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("encodes_here", "modules")

PROMPTS = [
    [(7 * i + 11 * k) % VOCAB_SIZE for k in range(length)] for i, length in enumerate((5, 37))
]
COUNT = 12


def by_library(folder: Path, **options: Any) -> PreTrainedModel:
    """The model as transformers and the format's library dequantize it."""
    auto: Any = AutoModelForCausalLM
    model: PreTrainedModel = auto.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu", attn_implementation="eager", **options
    )
    return model.eval()


def reference(folder: Path, format_name: str) -> PreTrainedModel:
    if format_name.startswith("fp8"):
        return by_library(folder, quantization_config=FineGrainedFP8Config(dequantize=True))
    if format_name == "mxfp4":
        return by_library(folder, quantization_config=Mxfp4Config(dequantize=True))
    if format_name.startswith("compressed"):
        return by_library(folder, quantization_config=CompressedTensorsConfig(dequantize=True))
    model = by_library(folder)
    assert format_name.startswith("bitsandbytes")
    return model.dequantize(torch.float32)


def eager(loaded: LoadedModel) -> PreTrainedModel:
    """A model of the same configuration, with weights of its own."""
    auto: Any = AutoModelForCausalLM
    config = copy.deepcopy(weights_of(loaded).config)
    model: PreTrainedModel = auto.from_config(config, attn_implementation="eager")
    return model.eval()


def tokens_of(loaded: LoadedModel) -> list[list[int]]:
    """Greedy tokens for the prompts together, in chunks."""
    core = EngineCore(
        config=loaded.config,
        runner=loaded.runner,
        shape=loaded.shape,
        card=loaded.card,
        key=loaded.key,
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=2, max_num_batched_tokens=16),
        clock=time.monotonic,
    )
    found: dict[str, list[int]] = {}
    for i, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.0, max_tokens=COUNT)
        core.add_request(Submission(request_id=str(i)), prompt, sampling)
        found[str(i)] = []
    while any(len(tokens) < COUNT for tokens in found.values()):
        for output in core.step():
            assert output.end is None or output.end.error is None
            found[output.request_id].extend(output.token_ids)
    return list(found.values())


def generated(model: PreTrainedModel) -> list[list[int]]:
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=COUNT,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        found.append(output[0, len(prompt) :].tolist())
    return found


def check(loaded: LoadedModel, expected: PreTrainedModel) -> None:
    """The weights are those of the other model, in ordinary layers; and so are its tokens."""
    model = weights_of(loaded)
    assert getattr(model.config, "quantization_config", None) is None
    found, wanted = model.state_dict(), expected.state_dict()
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == torch.float32, key
        assert torch.equal(found[key], value), key
    tokens = tokens_of(loaded)
    assert tokens == generated(expected)
    assert min(len(set(one)) for one in tokens) > 2
    loaded.close()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_format_is_served_as_its_library_dequantizes_it(tmp_path: Path, format_name: str) -> None:
    dense = save_quantized(tmp_path, format_name, "gpt_oss" if format_name == "mxfp4" else "llama")
    loaded = load(tmp_path)
    if dense is None or format_name == "fp8":
        expected = reference(tmp_path, format_name)
    else:
        expected = eager(loaded)
        expected.load_state_dict(weights_of(loaded).state_dict() | dense)
    check(loaded, expected)


@pytest.mark.parametrize("format_name", ["fp8", "compressed int4", "awq"])
def test_experts_are_merged_after_they_are_unpacked(tmp_path: Path, format_name: str) -> None:
    changes = {"moe_intermediate_size": 32, "head_dim": 16}
    dense = save_quantized(tmp_path, format_name, "qwen3_moe", **changes)
    loaded = load(tmp_path)
    expected = eager(loaded)
    assert dense is not None or format_name.startswith("compressed")
    found = weights_of(loaded).state_dict()
    for key, value in (dense or {}).items():
        if ".experts." in key:
            layer, _, expert = key.partition(".experts.")
            number, name, _ = expert.split(".")
            merged = found[
                f"{layer}.experts.{'down_proj' if name == 'down_proj' else 'gate_up_proj'}"
            ]
            half = (
                slice(32, None)
                if name == "up_proj"
                else slice(None, None if "down" in name else 32)
            )
            assert torch.equal(merged[int(number)][half], value.float()), key
    expected.load_state_dict(found)
    assert tokens_of(loaded) == generated(expected)
    loaded.close()


@pytest.mark.parametrize(
    ("name", "kind"), [("llama", "Q8_0"), ("llama", "Q4_0"), ("qwen2", "F16"), ("qwen3", "Q5_1")]
)
def test_a_gguf_file_is_served_as_its_library_dequantizes_it(
    tmp_path: Path, name: str, kind: str
) -> None:
    save_gguf(tmp_path / "tiny.gguf", name, kind)
    loaded = load(tmp_path / "tiny.gguf")
    assert loaded.card.name == "tiny"
    check(loaded, by_library(tmp_path, gguf_file="tiny.gguf"))


def test_a_folder_with_one_gguf_file_is_its_model(tmp_path: Path) -> None:
    model = save_gguf(tmp_path / "tiny-F32.gguf", "qwen3_moe", "F32")
    model.config.save_pretrained(tmp_path)  # transformers finds no size of experts in GGUF
    (tmp_path / "mmproj-tiny.gguf").write_bytes(b"")
    loaded = load(tmp_path)
    check(loaded, model)


@pytest.mark.parametrize("part", [1, 2])
def test_a_gguf_model_in_parts_is_served_from_any(tmp_path: Path, part: int) -> None:
    model = save_gguf(tmp_path / "tiny.gguf", kind="F32", part_tensors=16)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"]
    loaded = load(tmp_path / files[part - 1])
    assert loaded.card.name == "tiny"
    check(loaded, model)


def test_a_gguf_file_says_what_ends_a_reply(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{{ message['content'] + '<unk>' }}{% endfor %}"
        "{% if add_generation_prompt %}?{% endif %}"
    )
    stated = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}
    save_gguf(tmp_path / "tiny.gguf", template=template, **stated)
    loaded = load(tmp_path)
    unknown = 0  # The template ends each message with it.
    assert loaded.eos_token_ids == {END_ID, 5, 6, unknown}
    loaded.close()


def test_a_gguf_file_has_its_own_tokenizer_and_template(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}!"
    save_gguf(tmp_path / "tiny.gguf", template=template)
    loaded = load(tmp_path)
    ids = loaded.codec.encode([ChatMessage("user", "Hello you.")], None)
    detokenizer = loaded.codec.detokenizer()
    assert "".join(detokenizer.push(one) for one in ids) == "Hello you.!"
    assert len(ids) == 10  # "He" is one token
    assert loaded.eos_token_ids == {END_ID}
    loaded.close()


def test_the_log_and_the_plan_tell_what_the_weights_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_quantized(tmp_path, "bitsandbytes nf4")
    caplog.set_level(logging.INFO)
    progress = Recorded()
    loaded = load(tmp_path, progress)
    held = weights_of(loaded).state_dict().values()
    becomes = format_bytes(sum(tensor.numel() * tensor.element_size() for tensor in held))
    stored = open_checkpoint(tmp_path).num_bytes
    assert (
        f"{tmp_path.name} is quantized by bitsandbytes on disk, {format_bytes(stored)}; it is "
        f"served in float32, {becomes}"
    ) in caplog.text
    counted = [(done, of) for detail, done, of in progress.calls if detail == "loading weights"]
    assert counted[-1] == (counted[-1][1], counted[-1][1])
    assert {of for _, of in counted} == {counted[0][1]}
    loaded.close()
    monkeypatch.setattr(plan, "free_memory", lambda device: 1 << 19)
    assert f"weights {becomes}" in refusal(tmp_path).message
