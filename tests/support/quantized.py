"""Quantized checkpoints of tiny models, written by the formats' own libraries where these can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from engine.model.checkpoint import CONFIG_FILE, SINGLE_FILE
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


def _fp8(block: int) -> Callable[[Path, str, dict[str, Any]], State]:
    def pack(module: str, weight: Tensor) -> State:
        rows, columns = (-(-side // block) for side in weight.shape)
        padded = torch.zeros(rows * block, columns * block)
        padded[: weight.shape[0], : weight.shape[1]] = weight
        blocks = padded.view(rows, block, columns, block)
        scale = blocks.abs().amax((1, 3)) / 448
        values = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        dense = (values.float() * scale[:, None, :, None]).view_as(padded)
        cut = tuple(slice(side) for side in weight.shape)
        return {
            f"{module}.weight": values.view_as(padded)[cut],
            f"{module}.weight_scale_inv": scale,
            _DENSE: dense[cut],
        }

    def write(folder: Path, name: str, changes: dict[str, Any]) -> State:
        stated = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]}
        return _rewrite(folder, name, changes, stated | {"activation_scheme": "dynamic"}, pack)

    return write


def _write_mxfp4(folder: Path, name: str, changes: dict[str, Any]) -> None:
    assert name == "gpt_oss"
    save_checkpoint(folder, name, **changes)
    generator = torch.Generator().manual_seed(4)
    written: State = {}
    for key, value in load_file(folder / SINGLE_FILE).items():
        if not key.endswith(("gate_up_proj", "down_proj")):
            written[key] = value
            continue
        experts, inputs, outputs = value.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=generator)
        written[f"{key}_blocks"] = blocks
        written[f"{key}_scales"] = torch.randint(
            122, 126, shape, dtype=torch.uint8, generator=generator
        )
    save_file(written, folder / SINGLE_FILE)
    skipped = ["model.layers.*.self_attn", "lm_head"]
    state(folder, {"quant_method": "mxfp4", "modules_to_not_convert": skipped})


_COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group"}),
    "int4 asymmetric": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group"}),
    "int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
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
        scheme = QuantizationScheme(targets=["Linear"], weights=args, format=stored)

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


def _packed(values: Tensor, bits: int, order: list[int]) -> Tensor:
    """Unsigned numbers packed into int32 along the last axis, in an order of their own."""
    words = values.long().unflatten(-1, (-1, 32 // bits))[..., order]
    word = (words << (torch.arange(32 // bits) * bits)).sum(-1)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)


def _grouped(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Unsigned numbers [out, in], and zeros and scales of groups of inputs [out, groups]."""
    groups = weight.unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1), groups.amax(-1)
    scale = ((most - least) / ((1 << bits) - 1)).half().float()
    zero = (-least / scale).round().clamp(1, (1 << bits) - 1)
    numbers = (groups / scale[..., None] + zero[..., None]).round().clamp(0, (1 << bits) - 1)
    return numbers.flatten(1), zero, scale


def _dense(numbers: Tensor, zero: Tensor, scale: Tensor) -> Tensor:
    """What the numbers stand for, by the definition of both formats, in the type of the scales."""
    groups = numbers.unflatten(1, (-1, GROUP)) - zero[..., None]
    return (groups.half() * scale.half()[..., None]).flatten(1)


def _write_awq(folder: Path, name: str, changes: dict[str, Any]) -> State:
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(module: str, weight: Tensor) -> State:
        numbers, zero, scale = _grouped(weight, 4)
        return {
            f"{module}.qweight": _packed(numbers.T, 4, order),
            f"{module}.qzeros": _packed(zero.T, 4, order),
            f"{module}.scales": scale.T.half(),
            _DENSE: _dense(numbers, zero, scale),
        }

    stated = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    return _rewrite(folder, name, changes, stated | {"zero_point": True}, pack)


def _gptq(bits: int, *, acts_order: bool, version: int) -> Callable[..., State]:
    order = list(range(32 // bits))
    less = 2 - version

    def pack(module: str, weight: Tensor) -> State:
        inputs = weight.shape[1]
        shuffled = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
        where = shuffled if acts_order else torch.arange(inputs)
        numbers, zero, scale = _grouped(weight[:, where], bits)
        back = torch.argsort(where)
        return {
            f"{module}.qweight": _packed(numbers[:, back], bits, order).T,
            f"{module}.qzeros": _packed(zero.T - less, bits, order),
            f"{module}.scales": scale.T.half(),
            f"{module}.g_idx": (back // GROUP).int(),
            _DENSE: _dense(numbers, zero, scale)[:, back],
        }

    def write(folder: Path, name: str, changes: dict[str, Any]) -> State:
        stated = {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": GROUP,
            "desc_act": acts_order,
            "sym": False,
            "checkpoint_format": "gptq_v2" if version == 2 else "gptq",
        }
        return _rewrite(folder, name, changes, stated, pack)

    return write


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
    "mxfp4": _write_mxfp4,
    **{f"compressed {kind}": _compressed(kind) for kind in _COMPRESSED},
    "awq": _write_awq,
    "gptq": _gptq(4, acts_order=False, version=1),
    "gptq 8 bits": _gptq(8, acts_order=False, version=1),
    "gptq in order of activations": _gptq(4, acts_order=True, version=2),
    "bitsandbytes nf4": _by_transformers(lambda: _nf4(False)),
    "bitsandbytes nf4 nested": _by_transformers(lambda: _nf4(True)),
    "bitsandbytes int8": _by_transformers(lambda: BitsAndBytesConfig(load_in_8bit=True)),
}
FORMATS = tuple(_WRITERS)
