"""load_model on checkpoints of tiny models: weights, progress, defaults, and each refusal."""

from __future__ import annotations

import gc
import itertools
import json
import socket
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from engine.client import ChatMessage, LoadRequest
from engine.errors import EngineError, InvalidConfigError, ModelError
from engine.loading import LoadedModel
from engine.model import loader
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.checkpoint import CONFIG_FILE, INDEX_FILE, SINGLE_FILE, open_checkpoint
from engine.model.loader import load_model
from engine.model.program.verify import MismatchError
from engine.native import kernels
from engine.plan import NewSequence, Row, StepPlan
from engine.request import SamplingParams
from tests.support.checkpoints import END_ID, save_checkpoint
from tests.support.zoo import MAX_LEN

SMALL = {"device": "cpu", "num_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 64}


class Recorded:
    """A `Progress` that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        self.calls.append((detail, loaded_bytes, total_bytes))


def load(folder: Path, progress: Recorded | None = None, **options: Any) -> LoadedModel:
    request = LoadRequest(str(folder), **(SMALL | {"dtype": "float32"} | options))
    return load_model(request, progress or Recorded())


def refusal(folder: Path, **options: Any) -> EngineError:
    with pytest.raises((ModelError, InvalidConfigError)) as caught:
        load(folder, **options)
    assert "\n" not in caught.value.message
    return caught.value


def weights_of(loaded: LoadedModel) -> PreTrainedModel:
    model: PreTrainedModel = loaded.runner._forward._model  # type: ignore[attr-defined]
    return model


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models run module by module: a program takes their weights."""
    monkeypatch.setattr(CpuAttention, "why_not", lambda shape: "the test looks at the weights")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_checkpoint(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


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
    monkeypatch.setattr("engine.model.weights._CHUNK_BYTES", 1000)
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


def test_loaded_model_describes_itself(folder: Path) -> None:
    loaded = load(folder)
    assert loaded.card.name == folder.name
    assert loaded.card.architecture == "LlamaForCausalLM"
    assert (loaded.card.dtype, loaded.card.device) == ("float32", "cpu")
    assert loaded.card.num_params == loaded.shape.num_params == 67_920
    assert loaded.card.weight_bytes == 4 * 67_920
    assert loaded.card.kv_bytes_per_token == 3 * 2 * 2 * 12 * 4
    assert loaded.config.num_blocks == 40
    assert loaded.config.max_model_len == MAX_LEN
    assert loaded.eos_token_ids == {END_ID}
    assert (loaded.knobs.max_num_seqs, loaded.knobs.max_num_batched_tokens) == (4, 64)
    assert loaded.sampling == SamplingParams()
    prompt = loaded.codec.encode((ChatMessage("user", "Hi"),), None)
    assert prompt
    loaded.codec.check_token_ids(prompt, "prompt")


def test_key_names_weights_and_type(folder: Path) -> None:
    key = load(folder).key
    assert load(folder).key == key
    assert load(folder, dtype="bfloat16").key != key
    file = folder / SINGLE_FILE
    save_file(load_file(file), file, {"format": "pt", "revision": "2"})
    assert load(folder).key != key


@pytest.mark.usefixtures("modules")
def test_close_lets_the_weights_go(folder: Path) -> None:
    loaded = load(folder)
    model = weakref.ref(weights_of(loaded))
    loaded.close()
    gc.collect()
    assert model() is None


def test_a_model_that_was_refused_is_gone_when_the_next_one_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[weakref.ref[PreTrainedModel]] = []
    left: list[PreTrainedModel | None] = []

    def refuse(model: PreTrainedModel, *_: object) -> None:
        refused.append(weakref.ref(model))
        raise ModelError("refused")

    def free_memory(device: torch.device) -> int:
        left.extend(ref() for ref in refused)
        return 1 << 32

    with monkeypatch.context() as patched:
        patched.setattr(loader, "checked_forward", refuse)
        refusal(folder)
    monkeypatch.setattr(loader, "free_memory", free_memory)
    gc.disable()  # in a cycle, the refused model would stay until the collector happens to run
    try:
        load(folder).close()
    finally:
        gc.enable()
    assert left
    assert left == [None] * len(left)


def test_a_model_spent_on_kernels_that_are_wrong_is_gone_when_torch_gets_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spent: list[weakref.ref[PreTrainedModel]] = []
    check, read = loader.checked_forward, loader.load_weights

    def wrong(model: PreTrainedModel, *args: Any) -> Any:
        if args[-1] == "torch":
            return check(model, *args)
        spent.append(weakref.ref(model))
        raise MismatchError("a kernel is wrong")

    def counted(*args: Any) -> PreTrainedModel:
        assert not any(one() for one in spent)
        return read(*args)

    monkeypatch.setattr(loader, "checked_forward", wrong)
    monkeypatch.setattr(loader, "load_weights", counted)
    loaded = load(folder)
    assert len(spent) == 1
    assert loaded.card.attention == "torch"
    assert "a kernel is wrong; the native kernels are not used" in caplog.text
    loaded.close()


def test_local_folder_needs_no_network_and_prints_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    load(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": 3}, SamplingParams()),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 50},
            SamplingParams(temperature=0.6, top_p=0.9, top_k=50),
        ),
        (
            {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1},
            SamplingParams(temperature=0.0, repetition_penalty=1.1),
        ),
    ],
)
def test_sampling_defaults_of_the_checkpoint(
    folder: Path, generation: dict[str, Any], expected: SamplingParams
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert load(folder).sampling == expected


def test_registry_goes_before_the_checkpoint(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6}')
    registry = folder / "models.toml"
    registry.write_text(
        "[mine]\nsource = './'\ndtype = 'bfloat16'\ncontext_length = 50\nsampling = { top_k = 7 }\n"
    )
    request = LoadRequest("mine", models_file=str(registry), **SMALL)
    loaded = load_model(request, Recorded())
    assert loaded.card.name == "mine"
    assert loaded.sampling == SamplingParams(top_k=7)
    assert loaded.config.max_model_len == 50


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
    assert load(tmp_path, dtype="auto").card.dtype == "float32"
    assert load(tmp_path, dtype="float16").card.dtype == "float16"


def test_no_byte_of_weights_is_read_before_a_refusal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "free_memory", lambda device: 10 << 20)
    progress = Recorded()
    with pytest.raises(ModelError, match=r"does not fit on cpu: weights 0\.3 MiB"):
        load(folder, progress, num_blocks=None)
    assert [call for call in progress.calls if call[0] == "loading weights"] == []


@pytest.mark.skipif(kernels() is None, reason="no native kernels here")
class TestNativeKernels:
    """A CPU load is planned for the native kernels, and anew where they are given up."""

    # Torch's attention alone takes 256 MiB in a step.
    LITTLE, ENOUGH = 300 << 20, 400 << 20

    def test_the_pool_takes_what_torch_would_need(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loader, "free_memory", lambda device: self.LITTLE)
        loaded = load(folder, num_blocks=None)
        assert loaded.card.attention.startswith("cpu")
        assert loaded.config.num_slots == 4 * MAX_LEN
        loaded.close()

    def test_torch_is_planned_for_once_the_kernels_are_given_up(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked = loader.checked_forward
        given_up: list[weakref.ref[PreTrainedModel]] = []
        free = self.LITTLE

        def check(model: PreTrainedModel, *args: Any) -> Any:
            if args[-1] == "cpu":
                given_up.append(weakref.ref(model))
                raise MismatchError("the kernel for norm differs")
            return checked(model, *args)

        def free_memory(device: torch.device) -> int:
            # What is free is asked for when the first model is gone.
            assert [model() for model in given_up] in ([], [None])
            return free

        monkeypatch.setattr(loader, "checked_forward", check)
        monkeypatch.setattr(loader, "free_memory", free_memory)
        assert "does not fit on cpu" in refusal(folder, num_blocks=None).message
        assert given_up.pop()() is None

        free = self.ENOUGH
        loaded = load(folder, num_blocks=None)
        assert loaded.card.attention == "torch"
        loaded.close()


class Cancelled(Exception):  # noqa: N818
    """What a host may raise to end a loading."""


@pytest.mark.parametrize("after", [0, 100_000])
def test_progress_can_end_the_loading(folder: Path, after: int) -> None:
    def progress(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        if total_bytes and loaded_bytes >= after:
            raise Cancelled

    with pytest.raises(Cancelled):
        load_model(LoadRequest(str(folder), dtype="float32"), progress)


def test_memory_that_runs_out_all_the_same_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nAnd more")

    monkeypatch.setattr(loader, "TorchRunner", no_memory)
    assert refusal(folder).message.startswith(
        f"cpu ran out of memory while {folder.name} was loaded, with "
    )


class TestRefusals:
    """Each is one sentence that names the file or the option."""

    def test_no_config(self, folder: Path) -> None:
        (folder / CONFIG_FILE).unlink()
        assert refusal(folder).message == f"{folder / CONFIG_FILE} is missing"

    @pytest.mark.parametrize("text", ["{", "[1]", "\x00"])
    def test_broken_config(self, folder: Path, text: str) -> None:
        (folder / CONFIG_FILE).write_text(text)
        assert refusal(folder).message.startswith(f"{folder / CONFIG_FILE} is broken: ")

    @pytest.mark.parametrize("kind", [None, "gronk"])
    def test_unknown_model_type(self, folder: Path, kind: str | None) -> None:
        (folder / CONFIG_FILE).write_text(json.dumps({"model_type": kind}))
        assert f"has model_type {kind!r}, which transformers" in refusal(folder).message

    def test_config_of_wrong_types(self, folder: Path) -> None:
        config = json.loads((folder / CONFIG_FILE).read_text())
        (folder / CONFIG_FILE).write_text(json.dumps(config | {"num_hidden_layers": "three"}))
        assert refusal(folder).message.startswith(f"{folder / CONFIG_FILE} is not valid: ")

    @pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
    @pytest.mark.parametrize("dtype", ["banana", "int8", 7])
    def test_config_with_a_dtype_that_no_model_has(
        self, folder: Path, key: str, dtype: object
    ) -> None:
        config = json.loads((folder / CONFIG_FILE).read_text())
        config.pop("dtype", None)
        (folder / CONFIG_FILE).write_text(json.dumps(config | {key: dtype}))
        assert refusal(folder).message == (
            f"{folder / CONFIG_FILE} has dtype {dtype!r}; "
            "allowed are auto, float32, bfloat16, float16"
        )

    def test_own_code_is_not_run(self, folder: Path) -> None:
        config = json.loads((folder / CONFIG_FILE).read_text())
        del config["model_type"]
        config["auto_map"] = {"AutoConfig": "evil.Config"}
        (folder / CONFIG_FILE).write_text(json.dumps(config))
        (folder / "evil.py").write_text("raise SystemExit('this code was run')")
        assert "has model_type None" in refusal(folder).message

    def test_no_weights(self, folder: Path) -> None:
        (folder / SINGLE_FILE).unlink()
        assert refusal(folder).message == f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}"

    def test_truncated_weights(self, folder: Path) -> None:
        file = folder / SINGLE_FILE
        file.write_bytes(file.read_bytes()[:-1])
        assert refusal(folder).message.startswith(f"{file} is truncated: ")

    def test_weights_cut_while_they_are_read(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checkpoint = open_checkpoint(folder)
        file = folder / SINGLE_FILE
        file.write_bytes(file.read_bytes()[:-1])
        monkeypatch.setattr(loader, "open_checkpoint", lambda _: checkpoint)
        message = refusal(folder).message
        assert message.startswith(f"{file} is truncated: ")
        assert message.endswith(" is cut")

    def test_missing_weight(self, folder: Path) -> None:
        file = folder / SINGLE_FILE
        tensors = load_file(file)
        for name in ("model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
            del tensors[name]
        save_file(tensors, file)
        assert refusal(folder).message == (
            f"{folder} lacks the weights model.layers.1.mlp.up_proj.weight and 1 more"
        )

    def test_weight_of_another_shape(self, folder: Path) -> None:
        file = folder / SINGLE_FILE
        save_file(load_file(file) | {"model.norm.weight": torch.zeros(7)}, file)
        assert refusal(folder).message == (
            f"{folder} has model.norm.weight of shape (7,); its config asks for (48,)"
        )

    def test_no_tokenizer(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        assert f"{folder} has no tokenizer: none of tokenizer.json" in refusal(folder).message

    def test_broken_tokenizer(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")
        assert f"the tokenizer in {folder} is broken: " in refusal(folder).message

    def test_broken_generation_config(self, folder: Path) -> None:
        file = folder / "generation_config.json"
        file.write_text("{")
        assert refusal(folder).message.startswith(f"{file} is broken: ")
        file.write_text('{"temperature": -2}')
        assert refusal(folder).message.startswith(f"{file}: temperature is -2; it must be")

    def test_unsupported_architecture(self, tmp_path: Path) -> None:
        save_checkpoint(tmp_path, "lfm2")
        assert (
            "Lfm2ForCausalLM is not supported: it has layers of conv" in refusal(tmp_path).message
        )

    @pytest.mark.parametrize(
        ("options", "param", "expected"),
        [
            ({"dtype": "bf16"}, "dtype", "dtype is 'bf16'; allowed are auto, float32, bfloat16"),
            (
                {"device": "gpu"},
                "device",
                "device is 'gpu'; allowed are auto, cpu, cuda and cuda:N",
            ),
            ({"device": "meta"}, "device", "device is 'meta'; allowed are auto, cpu, cuda"),
            ({"device": "cuda:99"}, "device", "device is 'cuda:99', but torch sees "),
            (
                {"max_model_len": MAX_LEN + 1},
                "max_model_len",
                f"max_model_len is {MAX_LEN + 1}; ",
            ),
        ],
    )
    def test_options(
        self, folder: Path, options: dict[str, Any], param: str, expected: str
    ) -> None:
        error = refusal(folder, **options)
        assert isinstance(error, InvalidConfigError)
        assert error.param == param
        assert error.message.startswith(expected)
