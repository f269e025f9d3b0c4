"""Quantized checkpoints of tiny models, written by the formats' own libraries where these can, else
by the packers of the survey of models."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from benchmarks.coverage import packing
from benchmarks.coverage.packing import Packed
from engine.model.files.checkpoint import CONFIG_FILE, SINGLE_FILE
from tests.support.checkpoints import save_checkpoint, tiny_tokenizer

SIDES = {"hidden_size": 64, "intermediate_size": 96}
"""Sides that the blocks and groups of all formats divide."""

GROUP = 32

State = dict[str, Tensor]
_DENSE = "dense"


def save_quantized(
    folder: Path, format_name: str, name: str = "llama", **changes: Any
) -> State | None:
    """Save a model of the zoo in a format.

    Returns:
        what the packed weights stand for by the format's definition, where the writer is ours.
    """
    return _WRITERS[format_name](folder, name, SIDES | changes)


def state(folder: Path, quantization: dict[str, Any]) -> None:
    """Write what config.json says of the quantization."""
    path = folder / CONFIG_FILE
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization})
    )


def _rewrite(
    folder: Path,
    name: str,
    changes: dict[str, Any],
    quantization: dict[str, Any],
    pack: Callable[[str, Tensor], State],
) -> State:
    """Save a model whose linear layers are packed, but for the head.

    Returns:
        the layers as they are unpacked, where `pack` says it.
    """
    model = save_checkpoint(folder, name, **changes)
    layers = {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and path != "lm_head"
    }
    written: State = {}
    dense: State = {}
    for key, value in load_file(folder / SINGLE_FILE).items():
        # The experts of a checkpoint are layers of their own, and one tensor in a model.
        packed = key in layers or ".experts." in key
        written |= pack(key.removesuffix(".weight"), value) if packed else {key: value}
        if _DENSE in written:
            dense[key] = written.pop(_DENSE)
    save_file({key: value.contiguous() for key, value in written.items()}, folder / SINGLE_FILE)
    state(folder, quantization)
    return dense


def _packed(
    quantization: dict[str, Any], pack: Callable[[Tensor], Packed]
) -> Callable[[Path, str, dict[str, Any]], State]:
    """By a packer of the survey of models."""

    def parts(module: str, weight: Tensor) -> State:
        stored, plain = pack(weight)
        return {f"{module}.{name}": part for name, part in stored.items()} | {_DENSE: plain}

    def write(folder: Path, name: str, changes: dict[str, Any]) -> State:
        return _rewrite(folder, name, changes, quantization, parts)

    return write


def _in_half(scale: Tensor) -> Tensor:
    """Scales that say in which type a reader computes."""
    return scale.half().float()


def _fp8(block: int) -> Callable[[Path, str, dict[str, Any]], State]:
    stated = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]}
    pack = partial(packing.fp8_blocks, side=block, scaled=Tensor.clone)
    return _packed(stated | {"activation_scheme": "dynamic"}, pack)


def _fp8_of_tensors(weight: Tensor) -> Packed:
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scale}, stored.float() * scale


def _write_mxfp4(folder: Path, name: str, changes: dict[str, Any]) -> None:
    assert name == "gpt_oss"
    save_checkpoint(folder, name, **changes)
    written: State = {}
    for key, value in load_file(folder / SINGLE_FILE).items():
        if key.endswith(("gate_up_proj", "down_proj")):
            written[f"{key}_blocks"], written[f"{key}_scales"], _ = packing.mxfp4(value)
        else:
            written[key] = value
    save_file(written, folder / SINGLE_FILE)
    skipped = ["model.layers.*.self_attn", "lm_head"]
    state(folder, {"quant_method": "mxfp4", "modules_to_not_convert": skipped})


_COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group"}),
    "int4 asymmetric": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group"}),
    "int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int8 packed": ("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "group"}),
    "w8a8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "float8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float"}),
}


def _compressed(kind: str) -> Callable[[Path, str, dict[str, Any]], None]:
    def write(folder: Path, name: str, changes: dict[str, Any]) -> None:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

        stored, values = _COMPRESSED[kind]
        args = QuantizationArgs(
            symmetric="asymmetric" not in kind,
            **({"group_size": GROUP} if values.get("strategy") == "group" else {}),
            **({"group_size": 16, "strategy": "tensor_group"} if kind == "nvfp4" else {}),
            **values,
        )
        # What a server on a GPU makes of activations, which is not looked at.
        inputs = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
        inputs_args = QuantizationArgs(**inputs) if kind == "w8a8" else None
        scheme = QuantizationScheme(
            targets=["Linear"], weights=args, input_activations=inputs_args, format=stored
        )

        def pack(module: str, weight: Tensor) -> State:
            grouped = weight.unflatten(1, (-1, args.group_size or weight.shape[1]))
            least, most = grouped.amin(-1), grouped.amax(-1)
            whole = generate_gparam(least.min(), most.max()) if kind == "nvfp4" else None
            scale, zero = calculate_qparams(least, most, args, global_scale=whole)
            parts = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
            if whole is not None:
                parts["weight_global_scale"] = whole
            found = BaseCompressor.get_value_from_registry(stored).compress(parts, scheme)
            return {f"{module}.{key}": value for key, value in found.items()}

        stated = {
            "quant_method": "compressed-tensors",
            "format": stored,
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
        }
        _rewrite(folder, name, changes, stated, pack)

    return write


def _gptq(bits: int, *, version: int = 1, **how: Any) -> Callable[..., State]:
    stated = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": GROUP,
        "desc_act": "by_activation" in how,
        "sym": "is_symmetric" in how,
        "checkpoint_format": "gptq_v2" if version == 2 else "gptq",
    }
    return _packed(stated, _as_gptq(bits, 2 - version, **how))


def _as_gptq(bits: int, less: int, **how: Any) -> Callable[[Tensor], Packed]:
    return partial(packing.gptq, group=GROUP, bits=bits, less=less, scaled=_in_half, **how)


_AS_AWQ = partial(packing.awq, group=GROUP, scaled=_in_half)
_AWQ = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": GROUP,
    "version": "gemm",
    "zero_point": True,
}


def _auto_round(form: str, pack: Callable[[Tensor], Packed]) -> Callable[..., State]:
    stated = {"bits": 4, "group_size": GROUP, "sym": False, "data_type": "int"}
    return _packed(stated | {"quant_method": "auto-round", "packing_format": form}, pack)


def _modelopt(algorithm: str, pack: Callable[[Tensor], Packed]) -> Callable[..., State]:
    return _packed({"quant_method": "modelopt", "quant_algo": algorithm}, pack)


def _modelopt_fp8(of_outputs: bool) -> Callable[[Tensor], Packed]:
    def pack(weight: Tensor) -> Packed:
        most = weight.abs().amax(1, keepdim=True) if of_outputs else weight.abs().max()
        scale = most / 448
        stored = (weight / scale).to(torch.float8_e4m3fn)
        parts = {"weight": stored, "weight_scale": scale.flatten() if of_outputs else scale}
        # Of a projection of keys there is a scale of the cache, too.
        unread = {name: torch.tensor(3.0) for name in ("input_scale", "k_scale")}
        return parts | unread, stored.float() * scale

    return pack


def _modelopt_awq(weight: Tensor) -> Packed:
    """Inputs are multiplied before they are given to a matrix that was divided likewise."""
    before = torch.linspace(0.5, 2.0, weight.shape[1])
    parts, plain = packing.modelopt_nvfp4(weight / before)
    return parts | {"pre_quant_scale": before}, plain * before


def _by_transformers(quantization: Callable[[], Any]) -> Callable[..., None]:
    def write(folder: Path, name: str, changes: dict[str, Any]) -> None:
        save_checkpoint(folder, name, **changes)
        auto: Any = AutoModelForCausalLM
        model: PreTrainedModel = auto.from_pretrained(
            folder, quantization_config=quantization(), device_map="cpu", dtype=torch.float32
        )
        model.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)

    return write


def _nf4(nested: bool) -> BitsAndBytesConfig:
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested
    )


_WRITERS: dict[str, Callable[[Path, str, dict[str, Any]], State | None]] = {
    "fp8": _fp8(32),
    "fp8 with cut blocks": _fp8(40),
    "fp8 of tensors": _packed(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}, _fp8_of_tensors
    ),
    "mxfp4": _write_mxfp4,
    **{f"compressed {kind}": _compressed(kind) for kind in _COMPRESSED},
    "awq": _packed(_AWQ, _AS_AWQ),
    "gptq": _gptq(4),
    "gptq symmetric": _gptq(4, is_symmetric=True),
    "gptq 8 bits": _gptq(8),
    "gptq 8 bits symmetric": _gptq(8, is_symmetric=True),
    "gptq in order of activations": _gptq(4, version=2, by_activation=True),
    "auto-round": _auto_round("auto_round:auto_gptq", _as_gptq(4, 1)),
    "auto-round of its own": _auto_round("auto_round", _as_gptq(4, 0)),
    "auto-round as awq": _auto_round("auto_round:auto_awq", _AS_AWQ),
    "modelopt nvfp4": _modelopt("NVFP4", packing.modelopt_nvfp4),
    "modelopt nvfp4 awq": _modelopt("NVFP4_AWQ", _modelopt_awq),
    "modelopt fp8": _modelopt("FP8", _modelopt_fp8(False)),
    "modelopt fp8 of outputs": _modelopt("FP8_PER_CHANNEL_PER_TOKEN", _modelopt_fp8(True)),
    "bitsandbytes nf4": _by_transformers(lambda: _nf4(False)),
    "bitsandbytes nf4 nested": _by_transformers(lambda: _nf4(True)),
    "bitsandbytes int8": _by_transformers(lambda: BitsAndBytesConfig(load_in_8bit=True)),
}
FORMATS = tuple(_WRITERS)
