"""load_model: each refusal is one sentence that names the file or the option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.api.errors import InvalidConfigError, InvalidRequestError, ModelError
from engine.model.files.checkpoint import CONFIG_FILE, INDEX_FILE, SINGLE_FILE, open_checkpoint
from engine.model.loading import source
from engine.text.encoder import ChatEncoder
from tests.support.loading import refusal
from tests.support.zoo import MAX_LEN

pytestmark = pytest.mark.usefixtures("encodes_here")


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

    def test_tokens_that_cannot_be_listed(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: ChatEncoder) -> None:
            raise InvalidRequestError("the tokens cannot be listed: it took too long", "prompt")

        monkeypatch.setattr(ChatEncoder, "table", fail)
        error = refusal(folder)
        assert isinstance(error, ModelError)
        assert error.message == (
            f"the tokenizer in {folder} is broken: the tokens cannot be listed: it took too long"
        )

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
        monkeypatch.setattr(source, "open_checkpoint", lambda _: checkpoint)
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

    def test_broken_generation_config(self, folder: Path) -> None:
        file = folder / "generation_config.json"
        file.write_text("{")
        assert refusal(folder).message.startswith(f"{file} is broken: ")
        file.write_text('{"temperature": -2}')
        assert refusal(folder).message.startswith(f"{file}: temperature is -2; it must be")

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
