"""load_model on checkpoints of tiny models: weights, progress, defaults."""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.api.client import ChatMessage, LoadRequest
from engine.api.errors import ModelError
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.catalog.registry import ModelEntry
from engine.model.files.checkpoint import CONFIG_FILE, SINGLE_FILE, open_checkpoint
from engine.model.files.folder import default_sampling
from engine.model.files.tokenizer import read_tokenizer
from engine.model.loading import loader
from engine.model.loading.loader import load_model
from tests.support.checkpoints import END_ID, save_checkpoint
from tests.support.loading import SMALL, Recorded, load, refusal, weights_of
from tests.support.zoo import MAX_LEN

pytestmark = pytest.mark.usefixtures("encodes_here")


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("shards", ["one file", "shards"])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "mixtral", "gpt_oss", "gpt2", "phi3"])
def test_weights_are_those_saved_and_progress_counts_their_bytes(
    tmp_path: Path, name: str, shards: str
) -> None:
    model = save_checkpoint(
        tmp_path, name, max_shard_size="1GB" if shards == "one file" else "60KB"
    )
    files = list(tmp_path.glob("*.safetensors"))
    assert (len(files) == 1) == (shards == "one file")
    progress = Recorded()
    loaded = load(tmp_path, progress)

    expected = model.state_dict()
    found = weights_of(loaded).state_dict()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key

    total = sum(t.numel() * t.element_size() for file in files for t in load_file(file).values())
    counted = [(done, of) for detail, done, of in progress.calls if detail == "loading weights"]
    assert counted[0] == (0, total)
    assert counted[-1] == (total, total)
    assert [done for done, _ in counted] == sorted(done for done, _ in counted)
    assert {of for _, of in counted} == {total}
    loaded.close()


def test_large_tensors_are_counted_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.loading.weights._CHUNK_BYTES", 1000)
    progress = Recorded()
    load(folder, progress)
    counts = [done for detail, done, _ in progress.calls if detail == "loading weights"]
    steps = [after - before for before, after in itertools.pairwise(counts)]
    assert max(steps) == 1000


def test_what_the_model_has_no_place_for_counts_as_done(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tie_word_embeddings=True)
    file = tmp_path / SINGLE_FILE
    tensors = load_file(file)
    tied = tensors["model.embed_tokens.weight"].clone()
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(6)}
    save_file(tensors | {"lm_head.weight": tied} | old, file)
    progress = Recorded()
    load(tmp_path, progress)
    total = open_checkpoint(tmp_path).num_bytes
    assert progress.calls[-1] == ("allocating the KV pool", total, total)
    assert ("loading weights", total, total) in progress.calls


def test_weights_are_copies_that_outlive_their_file(folder: Path) -> None:
    loaded = load(folder)
    plan = StepPlan(
        1,
        (Row(0, 0, 3, (0,), True, True),),
        new=(NewSequence(0, (5, 6, 7), 3, SamplingParams(), 0, (), ()),),
    )
    before = loaded.runner.logits(plan).clone()  # type: ignore[attr-defined]
    file = folder / SINGLE_FILE
    file.write_bytes(bytes(file.stat().st_size))
    after = loaded.runner.logits(StepPlan(2, (Row(0, 0, 3, (), True, True),)))  # type: ignore[attr-defined]
    assert torch.equal(before, after)


def test_a_host_pool_is_made_and_its_rate_measured(folder: Path) -> None:
    loaded = load(folder, swap_memory=1 << 20)
    assert loaded.config.num_host_blocks == (1 << 20) // (16 * 3 * 2 * 2 * 12 * 4)
    assert loaded.swap_rate > 0


def test_latents_are_stored_unless_a_layer_makes_something_else_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_checkpoint(tmp_path, "glm4_moe_lite")
    assert load(tmp_path).card.kv_bytes_per_token == 3 * (20 + 8) * 4

    project = nn.Linear.forward

    def squared(module: nn.Linear, x: Tensor) -> Tensor:
        output = project(module, x)
        return output.square() if module.in_features == 20 else output

    monkeypatch.setattr(nn.Linear, "forward", squared)
    loaded = load(tmp_path)
    assert loaded.card.kv_bytes_per_token == 3 * 4 * (20 + 16) * 4
    assert "layer 0 does not make keys and values linearly, so what it makes is stored" in (
        caplog.text
    )
    logits = loaded.runner.logits(  # type: ignore[attr-defined]
        StepPlan(
            1,
            (Row(0, 0, 3, (0,), True, True),),
            new=(NewSequence(0, (5, 6, 7), 3, SamplingParams(), 0, (), ()),),
        )
    )
    expected = model(torch.tensor([[5, 6, 7]]), use_cache=False).logits[0, -1:]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_loaded_model_describes_itself(folder: Path) -> None:
    loaded = load(folder)
    assert loaded.card.name == folder.name
    assert loaded.card.architecture == "LlamaForCausalLM"
    assert (loaded.card.dtype, loaded.card.device) == ("float32", "cpu")
    assert loaded.card.gpu_uuid == ""
    assert (loaded.card.sampling, loaded.card.sampling_sources) == (SamplingParams(), {})
    assert loaded.card.chat_sampling == SamplingParams(temperature=0.7, top_p=0.95, min_p=0.05)
    assert not loaded.card.switches_thinking
    assert loaded.card.num_params == loaded.shape.num_params == 67_920
    assert loaded.card.weight_bytes == 4 * 67_920
    assert loaded.card.kv_bytes_per_token == 3 * 2 * 2 * 12 * 4
    assert (loaded.config.num_blocks, loaded.config.num_host_blocks) == (40, 0)
    assert loaded.swap_rate == 0
    assert loaded.config.max_model_len == MAX_LEN
    assert loaded.eos_token_ids == {END_ID}
    assert (loaded.knobs.max_num_seqs, loaded.knobs.max_num_batched_tokens) == (4, 64)
    prompt = loaded.codec.encode((ChatMessage("user", "Hi"),), None)
    assert prompt
    loaded.codec.check_token_ids(prompt, "prompt")


def test_the_card_says_which_gpu_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "gpu_uuid", lambda device: f"UUID of {device}")
    assert load(folder).card.gpu_uuid == "UUID of cpu"


def test_key_names_weights_and_type(folder: Path) -> None:
    key = load(folder).key
    assert load(folder).key == key
    assert load(folder, dtype="bfloat16").key != key
    file = folder / SINGLE_FILE
    save_file(load_file(file), file, {"format": "pt", "revision": "2"})
    assert load(folder).key != key


def test_local_folder_needs_no_network_and_prints_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    load(folder)
    assert capfd.readouterr() == ("", "")


def test_an_entry_says_that_replies_begin_as_thinking(folder: Path) -> None:
    registry = folder / "models.toml"
    registry.write_text('[thinker]\nsource = "./"\nbegins_thinking = true\n')
    with pytest.raises(ModelError) as caught:
        load_model(LoadRequest("thinker", str(registry), **SMALL), Recorded())
    assert caught.value.message == (
        "begins_thinking of thinker is true, and the model has no chat template; leave it out"
    )
    template = "{%- for m in messages -%}{{ m.content }}{%- endfor -%}"
    (folder / "chat_template.jinja").write_text(template)
    loaded = load_model(LoadRequest("thinker", str(registry), **SMALL), Recorded())
    prompt = loaded.codec.encode((ChatMessage("user", "Hi"),), None)
    assert loaded.codec.is_open(prompt)
    assert not loaded.codec.is_open(prompt, {"enable_thinking": False})
    assert not loaded.codec.is_open(prompt, None)  # a text
    assert not load(folder).codec.is_open(prompt)


@pytest.mark.parametrize(
    ("generation", "registry", "by_checkpoint", "by_registry"),
    [
        ({"eos_token_id": 3}, {}, {}, {}),
        ({"do_sample": True}, {}, {}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 50},
            {},
            {"temperature": 0.6, "top_p": 0.9, "top_k": 50},
            {},
        ),
        (
            {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1},
            {},
            {"temperature": 0.0, "repetition_penalty": 1.1},
            {},
        ),
        ({"top_k": -1}, {}, {"top_k": 0}, {}),
        ({"top_k": 0, "top_p": 1.0}, {}, {"top_k": 0, "top_p": 1.0}, {}),
        ({"top_k": None, "min_p": 0.1}, {}, {"min_p": 0.1}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {"top_k": 7}, {}, {"top_k": 7}),
        ({"temperature": 0.6}, {"max_tokens": 9}, {"temperature": 0.6}, {"max_tokens": 9}),
        (
            {"do_sample": False, "repetition_penalty": 1.1},
            {"temperature": 0.5},
            {"repetition_penalty": 1.1},
            {"temperature": 0.5},
        ),
        ({}, {"repetition_penalty": 1.2}, {}, {"repetition_penalty": 1.2}),
    ],
)
def test_the_sampling_that_is_recommended_and_by_whom(
    generation: dict[str, Any],
    registry: dict[str, object],
    by_checkpoint: dict[str, object],
    by_registry: dict[str, object],
) -> None:
    entry = ModelEntry(name="mine", folder=Path(), sampling=registry)
    sampling, sources = default_sampling(entry.sampling, generation, Path())
    assert sampling == SamplingParams().override(by_checkpoint | by_registry)
    assert sources == dict.fromkeys(by_checkpoint, "generation_config.json") | dict.fromkeys(
        by_registry, "models.toml"
    )


def test_a_checkpoint_recommends_nothing_that_is_not_allowed(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"top_k": -2}')
    with pytest.raises(
        ModelError, match=r"generation_config\.json: top_k is -2; it must be an int"
    ):
        load(folder)


def test_registry_goes_before_the_checkpoint(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6}')
    registry = folder / "models.toml"
    registry.write_text(
        "[mine]\nsource = './'\ndtype = 'bfloat16'\ncontext_length = 50\nsampling = { top_k = 7 }\n"
    )
    request = LoadRequest("mine", models_file=str(registry), **SMALL)
    loaded = load_model(request, Recorded())
    assert loaded.card.name == "mine"
    assert loaded.card.sampling == SamplingParams(top_k=7)
    assert loaded.card.chat_sampling == loaded.card.sampling
    assert loaded.config.max_model_len == 50


@pytest.mark.parametrize(
    ("stated", "own", "expected"),
    [
        ({"chat_template": "{{ 'by file' }}"}, None, "{{ 'by file' }}"),
        ({"chat_template": {"default": "{{ 'one' }}"}}, None, {"default": "{{ 'one' }}"}),
        ({"chat_template": "{{ 'by file' }}"}, "{{ 'own' }}", "{{ 'own' }}"),
        ({"chat_template": "{{ 'by file' }}"}, " ", "{{ 'by file' }}"),
        ({}, None, None),
    ],
)
def test_a_tokenizer_without_a_template_has_that_of_chat_template_json(
    folder: Path, stated: object, own: str | None, expected: object
) -> None:
    (folder / "chat_template.json").write_text(json.dumps(stated))
    if own is not None:
        (folder / "chat_template.jinja").write_text(own)
    assert read_tokenizer(folder).chat_template == expected


def test_a_wrong_template_of_chat_template_json_is_named(folder: Path) -> None:
    (folder / "chat_template.json").write_text('{"chat_template": ["x"]}')
    with pytest.raises(ModelError, match=r"chat_template\.json has chat_template \['x'\]; it must"):
        read_tokenizer(folder)


@pytest.mark.parametrize("template", [None, "", " \n", "{{ messages[0].content }}"])
def test_a_model_without_a_chat_template_is_known_and_told_once(
    folder: Path, template: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    has = template is not None and bool(template.strip())
    loaded = load(folder)
    assert loaded.card.has_chat_template == has
    assert bool(loaded.codec.turn_stops) != has
    told = [record.message for record in caplog.records if "no chat template" in record.message]
    assert len(told) == (not has)


def test_all_ends_are_known(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps(config | {"eos_token_id": 7}))
    assert load(folder).eos_token_ids == {5, 9, 7, END_ID}


def test_auto_dtype_is_the_stored_one_where_the_machine_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, dtype=torch.bfloat16)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert load(tmp_path, dtype=None).card.dtype == "bfloat16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    monkeypatch.setattr("engine.model.machine.device.kernels", lambda: None)
    assert load(tmp_path, dtype="auto").card.dtype == "float32"
    assert load(tmp_path, dtype="float16").card.dtype == "float16"


class Cancelled(Exception):  # noqa: N818
    """An exception that a host may raise to end a load."""


@pytest.mark.parametrize("after", [0, 100_000])
def test_progress_can_end_the_loading(folder: Path, after: int) -> None:
    def progress(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        if total_bytes and loaded_bytes >= after:
            raise Cancelled

    with pytest.raises(Cancelled):
        load_model(LoadRequest(str(folder), dtype="float32"), progress)


def test_a_model_that_does_not_attend_knows_no_longest_sequence(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "mamba2")
    file = tmp_path / CONFIG_FILE
    config = json.loads(file.read_text())
    config.pop("max_position_embeddings", None)
    file.write_text(json.dumps(config))
    assert load(tmp_path, num_blocks=8).config.max_model_len == 128


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "default"}, 128),
        ({"rope_type": "linear", "factor": 4.0}, 512),
        ({"rope_type": "linear", "factor": 0.5}, 128),
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        # Here `max_position_embeddings` counts what scaling reaches.
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            128,
        ),
    ],
    ids=lambda value: value.get("rope_type") if isinstance(value, dict) else None,
)
def test_scaled_rotations_lengthen_the_context(
    tmp_path: Path, rope: dict[str, Any], longest: int
) -> None:
    rope = {"rope_theta": 10000.0, **rope}
    model = save_checkpoint(tmp_path, "llama", max_position_embeddings=128, rope_parameters=rope)
    loaded = load(tmp_path, max_num_batched_tokens=longest)
    assert loaded.config.max_model_len == longest
    prompt, blocks = tuple(5 + token * 7 % 80 for token in range(longest)), tuple(range(40))
    logits = loaded.runner.logits(  # type: ignore[attr-defined]
        StepPlan(
            1,
            (Row(0, 0, longest, blocks[: longest // 16], True, True),),
            new=(NewSequence(0, prompt, longest, SamplingParams(), 0, (), ()),),
        )
    )
    expected = model(torch.tensor([prompt]), use_cache=False).logits[0, -1:]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert f"allows 1 to {longest}" in refusal(tmp_path, max_model_len=longest + 1).message


def test_a_scaling_that_reaches_further_than_any_model_is_refused(tmp_path: Path) -> None:
    rope = {"rope_theta": 10000.0, "rope_type": "linear", "factor": 1e9}
    save_checkpoint(tmp_path, rope_parameters=rope)
    reached = MAX_LEN * 10**9
    assert f"its rope_parameters reach {reached} positions" in refusal(tmp_path).message
