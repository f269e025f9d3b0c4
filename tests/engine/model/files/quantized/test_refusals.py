"""Quantized checkpoints and GGUF files that are not read: one sentence each says why."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.model.catalog.registry import Registry
from engine.model.files.checkpoint import CONFIG_FILE, SINGLE_FILE, has_weights
from engine.model.loading import loader
from tests.support.checkpoints import save_checkpoint
from tests.support.gguf_files import save_gguf
from tests.support.loading import refusal
from tests.support.quantized import save_quantized, state

pytestmark = pytest.mark.usefixtures("encodes_here")


@pytest.fixture(autouse=True)
def reads_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is refused here is refused before a weight is read."""

    def load_weights(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loader, "load_weights", load_weights)


def remove(folder: Path, name: str) -> None:
    file = folder / SINGLE_FILE
    with safe_open(file, "pt") as stream:
        metadata = stream.metadata()
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata)


def restate(folder: Path, **changes: Any) -> None:
    stated = json.loads((folder / CONFIG_FILE).read_text())["quantization_config"]
    state(folder, stated | changes)


@pytest.mark.parametrize("method", ["hqq", "quark", None, 3, ["fp8"]])
def test_a_method_that_is_not_read(tmp_path: Path, method: object) -> None:
    save_checkpoint(tmp_path)
    state(tmp_path, {"quant_method": method})
    assert refusal(tmp_path).message == (
        f"{tmp_path / CONFIG_FILE} is quantized by {method!r}; read are fp8, mxfp8, mxfp4, "
        "compressed-tensors, bitsandbytes, awq, gptq, auto-round, modelopt, torchao, and GGUF files"
    )


@pytest.mark.parametrize(
    ("format_name", "package", "extra", "of"),
    [
        ("compressed int4", "compressed_tensors", "compressed-tensors", "compressed-tensors"),
        ("awq", "compressed_tensors", "compressed-tensors", "AWQ"),
        ("gptq", "compressed_tensors", "compressed-tensors", "GPTQ"),
        ("modelopt nvfp4", "compressed_tensors", "compressed-tensors", "ModelOpt's NVFP4"),
        ("bitsandbytes nf4", "bitsandbytes", "bitsandbytes", "bitsandbytes"),
    ],
)
def test_a_library_that_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_name: str,
    package: str,
    extra: str,
    of: str,
) -> None:
    save_quantized(tmp_path, format_name)
    monkeypatch.setitem(sys.modules, package, None)
    assert refusal(tmp_path).message == (
        f"checkpoints in {of} need the extra {extra}: pip install 'batchdeck[{extra}]'"
    )


def test_a_library_that_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_quantized(tmp_path, "bitsandbytes nf4")
    (tmp_path / "bitsandbytes.py").write_text("import a_library_that_nobody_wrote")
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert refusal(tmp_path).message == (
        "bitsandbytes cannot be imported: ModuleNotFoundError: No module named "
        "'a_library_that_nobody_wrote'"
    )


UP = "model.layers.0.mlp.up_proj"
DOWN = "model.layers.0.mlp.experts.down_proj"
CONFIG, SINGLE = f"{{}}/{CONFIG_FILE}", f"{{}}/{SINGLE_FILE}"
Change = Callable[[Path], object]


def without(name: str) -> Change:
    return lambda folder: remove(folder, name)


def stating(**changes: object) -> Change:
    return lambda folder: restate(folder, **changes)


def of_no_group(folder: Path) -> None:
    stated = json.loads((folder / CONFIG_FILE).read_text())["quantization_config"]
    group = stated["config_groups"]["group_0"]
    groups = {name: group | {"targets": [f"re:.*{name}.*"]} for name in ("mlp", "q_proj")}
    restate(folder, config_groups=groups)


def scaled_otherwise(folder: Path) -> None:
    file = folder / SINGLE_FILE
    save_file(load_file(file) | {f"{UP}.weight_scale": torch.ones(3, 2)}, file)


NOT_SCALED = "and nothing says by what it is scaled"
BITS = "bits; of GPTQ, (2, 4, 8) are read"
PACKINGS = (
    "of auto-round, auto_round:auto_gptq, auto_round:gptqmodel, auto_round:exllamav2, auto_round, "
    "auto_round:auto_awq are read"
)
# A format, what is changed, and the sentence, with … for what is of no account.
BROKEN: list[tuple[str, Change, str]] = [
    (
        "fp8",
        without(f"{UP}.weight_scale_inv"),
        f"{SINGLE} stores {UP}.weight as F8_E4M3, {NOT_SCALED}",
    ),
    (
        "fp8",
        stating(weight_block_size=[48, 32]),
        "…weight_scale_inv of shape (3, 2), which is not a scale for each block of [48, 32] of "
        "(96, 64)",
    ),
    ("mxfp4", without(f"{DOWN}_scales"), f"{{}} has {DOWN}_blocks and lacks {DOWN}_scales"),
    (
        "compressed int4",
        stating(transform_config={"config_groups": {"R1": {"type": "hadamard"}}}),
        "…has a transform_config in its quantization_config; that is not und…",
    ),
    (
        "compressed int4",
        stating(config_groups={"group_0": {"targets": 3}}),
        f"{CONFIG} is not valid: …",
    ),
    (
        "compressed int4",
        of_no_group,
        f"{CONFIG} has no group in its quantization_config for model.layers.0.self_attn.k_proj",
    ),
    (
        "awq",
        stating(version="marlin"),
        f"{CONFIG} is not valid: ValueError: Unsupported AutoAWQ version: marlin",
    ),
    ("awq", without(f"{UP}.qzeros"), f"…and lacks {UP}.qzeros…"),
    *(("gptq", stating(bits=bits), f"{CONFIG} states {bits!r} {BITS}") for bits in (3, None, "4")),
    (
        "gptq",
        stating(checkpoint_format="marlin"),
        f"{CONFIG} has checkpoint_format 'marlin'; gptq, gptq_v2 are read",
    ),
    *(
        (
            "auto-round",
            stating(packing_format=form),
            f"{CONFIG} has packing_format {form!r}; {PACKINGS}",
        )
        for form in ("auto_round:llm_compressor", None)
    ),
    (
        "auto-round",
        stating(data_type="mx_fp"),
        f"{CONFIG} has data_type 'mx_fp'; of auto-round, 'int' is read",
    ),
    (
        "auto-round",
        stating(extra_config={"lm_head": {"bits": 16}, UP: {"bits": 8}}),
        f"{CONFIG} states 8 bits for {UP} and 4 for others; all that is packed must have the same",
    ),
    ("modelopt nvfp4", without(f"{UP}.weight_scale_2"), f"…and lacks {UP}.weight_scale_2…"),
    (
        "modelopt fp8",
        scaled_otherwise,
        f"{SINGLE} stores {UP}.weight as F8_E4M3 [96, 64] with a weight_scale of F32 [3, 2]; of "
        "ModelOpt, FP8 with a scale for a matrix or for each output is read, and NVFP4",
    ),
    ("bitsandbytes nf4", without(f"{UP}.weight"), f"{{}} lacks {UP}.weight"),
    ("bitsandbytes int8", without(f"{UP}.SCB"), f"{SINGLE} stores {UP}.weight as I8, {NOT_SCALED}"),
]


@pytest.mark.parametrize(("format_name", "change", "sentence"), BROKEN)
def test_a_checkpoint_that_is_broken(
    tmp_path: Path, format_name: str, change: Change, sentence: str
) -> None:
    save_quantized(tmp_path, format_name, "gpt_oss" if format_name == "mxfp4" else "llama")
    change(tmp_path)
    message = refusal(tmp_path).message.replace(str(tmp_path), "{}")
    assert re.fullmatch(re.escape(sentence).replace("…", ".*"), message), message


def test_a_head_of_other_bits_is_read(tmp_path: Path) -> None:
    save_quantized(tmp_path, "auto-round")
    restate(tmp_path, extra_config={"lm_head": {"bits": 16}})
    with pytest.raises(AssertionError, match="weights were read"):
        refusal(tmp_path)


def test_a_file_of_modelopts_own_says_it_too(tmp_path: Path) -> None:
    save_quantized(tmp_path, "modelopt fp8")
    stated = json.loads((tmp_path / CONFIG_FILE).read_text())
    quantization = stated.pop("quantization_config")
    (tmp_path / CONFIG_FILE).write_text(json.dumps(stated))
    assert NOT_SCALED.removeprefix("and ") in refusal(tmp_path).message
    own = {"producer": {"name": "modelopt"}, "quantization": quantization}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(own))
    with pytest.raises(AssertionError, match="weights were read"):
        refusal(tmp_path)


class TestTorchao:
    """The library itself is not among those of development."""

    NAME = "model.layers.0.mlp.up_proj.weight"

    @pytest.fixture
    def packed(self, tmp_path: Path) -> Path:
        """A folder with one weight as torchao saves it."""
        save_checkpoint(tmp_path)
        state(tmp_path, {"quant_method": "torchao", "quant_type": "int8_weight_only"})
        tensors = load_file(tmp_path / SINGLE_FILE)
        kinds: dict[str, dict[str, Any]] = {name: {"_type": "Tensor"} for name in tensors}
        weight = tensors.pop(self.NAME)
        kinds[self.NAME] = {"_type": "Int8Tensor", "_tensor_data_names": ["qdata", "scale"]}
        prefix = f"{self.NAME.removesuffix('weight')}_weight_"
        tensors[f"{prefix}qdata"] = weight.to(torch.int8)
        tensors[f"{prefix}scale"] = weight[:, :1].contiguous()
        said = {name: json.dumps(kind) for name, kind in kinds.items()}
        said["tensor_names"] = json.dumps(list(kinds))
        save_file(tensors, tmp_path / SINGLE_FILE, said)
        return tmp_path

    def test_a_library_that_is_missing(self, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torchao", None)
        assert refusal(packed).message == (
            "checkpoints in torchao need the extra torchao: pip install 'batchdeck[torchao]'"
        )

    def test_headers_that_say_nothing(self, packed: Path) -> None:
        save_file(load_file(packed / SINGLE_FILE), packed / SINGLE_FILE)
        assert "the headers of its safetensors do not say how" in refusal(packed).message

    def test_a_part_is_missing(self, packed: Path) -> None:
        remove(packed, "model.layers.0.mlp.up_proj._weight_scale")
        assert refusal(packed).message == f"{packed} lacks parts of {self.NAME}"


class TestGguf:
    def test_several_in_one_folder(self, tmp_path: Path) -> None:
        for name in ("b.gguf", "a.gguf"):
            save_gguf(tmp_path / name)
        assert refusal(tmp_path).message == (
            f"{tmp_path} holds 2 GGUF models; name one of them, such as {tmp_path / 'a.gguf'}"
        )
        assert not has_weights(tmp_path)
        assert has_weights(tmp_path / "a.gguf")
        assert Registry({}, tmp_path).find(str(tmp_path / "a.gguf")).name == "a"

    def test_a_part_of_a_model(self, tmp_path: Path) -> None:
        save_gguf(tmp_path / "tiny.gguf", **{"split.count": 3})
        assert refusal(tmp_path).message == (
            f"{tmp_path / 'tiny.gguf'} says that it is one of 3 parts; the parts must be named as "
            "llama-gguf-split names them, such as NAME-00001-of-00003.gguf"
        )

    def test_an_architecture_that_transformers_does_not_read(self, tmp_path: Path) -> None:
        save_gguf(tmp_path / "tiny.gguf", architecture="rwkv7")
        message = refusal(tmp_path).message
        assert f"{tmp_path / 'tiny.gguf'} is of the architecture 'rwkv7', which trans" in message
        assert "it reads bloom, deci, falcon, " in message
        assert "tokenizer" not in message

    def test_a_type_that_gguf_does_not_know(self, tmp_path: Path) -> None:
        file = tmp_path / "tiny.gguf"
        save_gguf(file)
        name = b"token_embd.weight"
        data = bytearray(file.read_bytes())
        at = data.index(name) + len(name) + 4 + 2 * 8  # two sides, and their number
        assert struct.unpack_from("<I", data, at) == (gguf.GGMLQuantizationType.Q8_0,)
        struct.pack_into("<I", data, at, 99)
        file.write_bytes(data)
        message = refusal(tmp_path).message
        assert message.startswith(
            f"{file} stores token_embd.weight as type 99, which is unknown; known are F32 (0), "
        )

    def test_a_type_that_is_not_unpacked(self, tmp_path: Path) -> None:
        file = tmp_path / "tiny.gguf"
        save_gguf(file, kind="F32")
        name = b"token_embd.weight"
        data = bytearray(file.read_bytes())
        at = data.index(name) + len(name) + 4 + 2 * 8
        struct.pack_into("<I", data, at, gguf.GGMLQuantizationType.I32)
        file.write_bytes(data)
        assert refusal(tmp_path).message.startswith(
            f"{file} stores token_embd.weight as I32; read are F32, F16, Q4_0, "
        )

    def test_positions_that_are_scaled(self, tmp_path: Path) -> None:
        model = save_gguf(tmp_path / "tiny.gguf", **{"llama.rope.scaling.type": "made-up"})
        assert refusal(tmp_path).message == (
            f"{tmp_path / 'tiny.gguf'} scales its positions by rope.scaling.type 'made-up', which "
            f"is not read; put the model's own {CONFIG_FILE} beside it"
        )
        model.config.save_pretrained(tmp_path)
        with pytest.raises(AssertionError, match="weights were read"):
            refusal(tmp_path)

    @pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.05, 0.5, 0.99])
    def test_a_file_that_is_cut(self, tmp_path: Path, share: float) -> None:
        file = tmp_path / "tiny.gguf"
        save_gguf(file)
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])
        assert str(file) in refusal(tmp_path).message

    def test_a_count_that_leads_beyond_the_end(self, tmp_path: Path) -> None:
        file = tmp_path / "tiny.gguf"
        key = b"\x01\0\0\0\0\0\0\0k"
        array = struct.pack("<IIQ", 9, 0, 1 << 62)  # an array of 2^62 bytes
        file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + array)
        assert refusal(tmp_path).message.startswith(f"{file} is truncated or corrupt: k would end ")
