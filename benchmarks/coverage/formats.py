"""Formats: the forms of checkpoints on disk, written from a tiny model's plain weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from benchmarks.coverage import packing
from benchmarks.coverage.gguf import as_stored, interleaved, write_gguf
from benchmarks.coverage.packing import Packer
from benchmarks.coverage.tiny import tiny_words

_IN_GGUF = "Q8_0"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
Tensors = dict[str, Tensor]

# AWQ and GPTQ have groups of 128 inputs.
_WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}


@dataclass(frozen=True, slots=True)
class Format:
    """A form of checkpoints.

    Attributes:
        text: the type of the tiny model, and the values that override those of its row.
        quantization: what config.json says of it; None if nothing.
        store: turns plain weights, by name, into those that are stored and those that they stand
            for. None if such weights cannot be written here: then config.json says that they are
            stored so, and they are not.
        write: puts the stored weights into a folder.
    """

    text: tuple[str, Mapping[str, Any]]
    quantization: Mapping[str, Any] | None
    store: Callable[[Tensors], tuple[Tensors, Tensors]] | None
    write: Callable[[Path, Tensors], None]

    def apply(self, folder: Path, reference: Path) -> None:
        """Rewrite a folder of plain weights; `reference` is a copy of it, which gets the weights
        that the stored ones stand for."""
        stored = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        if self.store is not None:
            stored, plain = self.store(stored)
            save_file(plain, reference / WEIGHTS, {"format": "pt"})
        self.write(folder, stored)
        if self.quantization is not None:
            config = json.loads((folder / CONFIG).read_text())
            config["quantization_config"] = self.quantization
            (folder / CONFIG).write_text(json.dumps(config))


def _products(pack: Packer) -> Callable[[Tensors], tuple[Tensors, Tensors]]:
    """Packs the matrices of the layers' products. Embedding, head, routers and norms stay."""

    def store(weights: Tensors) -> tuple[Tensors, Tensors]:
        stored: Tensors = {}
        plain: Tensors = {}
        for name, weight in weights.items():
            stem, _, last = name.rpartition(".")
            is_product = ".layers." in name and last == "weight" and weight.ndim == 2
            if is_product and not stem.endswith((".gate", "norm")):
                parts, plain[name] = pack(weight.float())
                stored.update((f"{stem}.{end}", part) for end, part in parts.items())
            else:
                stored[name] = plain[name] = weight
        return stored, plain

    return store


def _experts(weights: Tensors) -> tuple[Tensors, Tensors]:
    """Packs the experts of gpt-oss."""
    stored: Tensors = {}
    plain: Tensors = {}
    for name, weight in weights.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, plain[name] = packing.mxfp4(weight.float())
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            stored[name] = plain[name] = weight
    return stored, plain


def _as_they_are(weights: Tensors) -> tuple[Tensors, Tensors]:
    return weights, weights


def _safetensors(folder: Path, weights: Tensors) -> None:
    shared = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
    save_file(shared, folder / WEIGHTS, {"format": "pt"})


def _pickled(folder: Path, weights: Tensors) -> None:
    torch.save(weights, folder / "pytorch_model.bin")


def _gguf(*, alone: bool) -> Callable[[Path, Tensors], None]:
    """Writes a GGUF file, alone or beside the configuration and the tokenizer."""

    def write(folder: Path, weights: Tensors) -> None:
        config = AutoConfig.from_pretrained(folder)
        if alone:
            for file in folder.iterdir():
                file.unlink()
        write_gguf(
            folder / "model.gguf",
            config,
            tiny_words(),
            weights,
            _IN_GGUF,
            ends={"pad": 0, "bos": 1, "eos": 2},
            merges=["w 0"],  # transformers takes a tokenizer without any for another kind
        )

    return write


def _in_blocks(weights: Tensors) -> tuple[Tensors, Tensors]:
    """The weights as GGUF keeps them. All matrices are packed while it is written."""
    return weights, {name: as_stored(weight, _IN_GGUF) for name, weight in weights.items()}


_MISTRAL_NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "layers",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _consolidated(folder: Path, weights: Tensors) -> None:
    """Mistral's own names. Its heads turn neighbouring numbers, and not the halves of a head."""
    config = json.loads((folder / CONFIG).read_text())
    renamed = {}
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, config["head_dim"])
        for theirs, ours in _MISTRAL_NAMES.items():
            name = name.replace(theirs, ours)
        renamed[name] = weight
    save_file(renamed, folder / "consolidated.safetensors", {"format": "pt"})
    parameters = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "head_dim": config["head_dim"],
        "hidden_dim": config["intermediate_size"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
    }
    (folder / "params.json").write_text(json.dumps(parameters))


def _quantized(pack: Packer | None, **quantization: Any) -> Format:
    store = None if pack is None else _products(pack)
    return Format(("llama", _WIDE), quantization, store, _safetensors)


def _compressed(pack: Packer, form: str, weights: dict[str, Any], **group: Any) -> Format:
    """A format of compressed-tensors, whose configuration describes groups of modules."""
    return _quantized(
        pack,
        quant_method="compressed-tensors",
        format=form,
        quantization_status="compressed",
        ignore=["lm_head"],
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights, **group}},
    )


_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
FP8_BLOCKS = "fp8-block (DeepSeek V3, Qwen3-FP8, MiniMax M2)"
MXFP4 = "mxfp4 (gpt-oss)"

FORMATS: dict[str, Format] = {
    FP8_BLOCKS: _quantized(packing.fp8_blocks, **_FP8),
    MXFP4: Format(
        ("gpt_oss", {}),
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        },
        _experts,
        _safetensors,
    ),
    "awq": _quantized(
        packing.awq, quant_method="awq", bits=4, group_size=128, version="gemm", zero_point=True
    ),
    "gptq": _quantized(
        packing.gptq, quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=False
    ),
    "compressed-tensors w4a16": _compressed(
        packing.int4_groups,
        "pack-quantized",
        {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
    ),
    "compressed-tensors fp8": _compressed(
        packing.fp8_channels,
        "float-quantized",
        {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
        input_activations={
            "num_bits": 8,
            "type": "float",
            "symmetric": True,
            "strategy": "token",
            "dynamic": True,
        },
    ),
    "nvfp4 (compressed-tensors)": _compressed(
        packing.nvfp4,
        "nvfp4-pack-quantized",
        {
            "num_bits": 4,
            "type": "float",
            "symmetric": True,
            "strategy": "tensor_group",
            "group_size": 16,
        },
    ),
    "nvfp4 (modelopt)": _quantized(
        packing.modelopt_nvfp4,
        quant_method="modelopt",
        quant_algo="NVFP4",
        kv_cache_quant_algo="FP8",
        ignore=["lm_head"],
    ),
    "bitsandbytes nf4": _quantized(
        packing.nf4,
        quant_method="bitsandbytes",
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype="bfloat16",
        bnb_4bit_use_double_quant=True,
    ),
    "bitsandbytes int8": _quantized(
        packing.int8_rows, quant_method="bitsandbytes", load_in_8bit=True
    ),
    "torchao int4": _quantized(None, quant_method="torchao", quant_type="int4_weight_only"),
    "hqq": _quantized(
        None,
        quant_method="hqq",
        quant_config={"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}},
    ),
    "auto-round": _quantized(
        packing.gptq,
        quant_method="auto-round",
        bits=4,
        group_size=128,
        sym=False,
        data_type="int",
        packing_format="auto_round:auto_gptq",
    ),
    "quanto": _quantized(None, quant_method="quanto", weights="int8"),
    "GGUF file": Format(("llama", {}), None, _in_blocks, _gguf(alone=True)),
    "GGUF file beside config.json": Format(("llama", {}), None, _in_blocks, _gguf(alone=False)),
    "pytorch_model.bin": Format(("llama", {}), None, _as_they_are, _pickled),
    "mistral consolidated.safetensors": Format(
        ("mistral", {"head_dim": 16}), None, _as_they_are, _consolidated
    ),
}


def quantized_as(text: str, name: str) -> Format:
    """Another type of text model in one of these forms."""
    known = FORMATS[name]
    return Format((text, {}), known.quantization, known.store, known.write)
