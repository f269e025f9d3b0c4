"""ModelOpt: FP8 with a scale for a matrix or for each output, and NVFP4."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint, StoredTensor
from engine.model.files.quantized.compressed import EXTRA
from engine.model.files.quantized.grouping import Group, by_module, pick
from engine.model.files.quantized.library import library
from engine.model.files.stored import StoredWeight, plain

_SCALE, _SECOND, _BEFORE = "weight_scale", "weight_scale_2", "pre_quant_scale"
_OF_WEIGHT = ("weight", _SCALE, _SECOND, _BEFORE)
# Scales of a layer's inputs and its cache are useless for an unquantized model.
_DROPPED = ("input_scale", "output_scale", "k_scale", "v_scale")


def weights(stated: object, checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Their tensors show which are packed, and how, so that models of mixed precision are supported
    too.

    Raises:
        ModelError: the library is missing; a weight is of another kind, or lacks its scales.
    """
    for module, group in by_module(checkpoint).items():
        packed = _SCALE in group
        if packed:
            yield _packed(module, group)
        for name, tensor in group.items():
            if not (packed and name in _OF_WEIGHT) and name not in _DROPPED:
                yield plain(tensor)


def _packed(module: str, group: Group) -> StoredWeight:
    weight, scale = pick(module, group, "weight", _SCALE).values()
    before = {_BEFORE: group[_BEFORE]} if _BEFORE in group else {}
    parts = {"weight": weight, _SCALE: scale, **before}
    if weight.dtype == "F8_E4M3" and _is_of_outputs(scale, weight):
        return StoredWeight(f"{module}.weight", parts, _unpack_fp8)
    if weight.dtype == "U8" and scale.dtype == "F8_E4M3":
        library("compressed_tensors.compressors.nvfp4.helpers", EXTRA, "ModelOpt's NVFP4")
        parts |= pick(module, group, _SECOND)
        return StoredWeight(f"{module}.weight", parts, _unpack_nvfp4)
    raise ModelError(
        f"{weight.file} stores {weight.name} as {weight.dtype} {list(weight.shape)} with a "
        f"weight_scale of {scale.dtype} {list(scale.shape)}; of ModelOpt, FP8 with a scale for a "
        "matrix or for each output is read, and NVFP4"
    )


def _is_of_outputs(scale: StoredTensor, weight: StoredTensor) -> bool:
    """Whether there is one number for the matrix, or one for each of its outputs."""
    return scale.dtype == "F32" and scale.shape in (
        (),
        (1,),
        weight.shape[:1],
        (weight.shape[0], 1),
    )


def _unpack_fp8(parts: dict[str, Tensor]) -> Tensor:
    weight, scale = parts["weight"].float(), parts[_SCALE]
    return _folded(weight * (scale.reshape(-1, 1) if scale.numel() > 1 else scale), parts)


def _unpack_nvfp4(parts: dict[str, Tensor]) -> Tensor:
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    packed, scale = parts["weight"], parts[_SCALE].float() * parts[_SECOND]
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    values = unpack_fp4_from_uint8(packed, rows, columns, dtype=torch.float32)
    grouped = values.view(rows, scale.shape[1], -1) * scale[..., None]
    return _folded(grouped.view(rows, columns), parts)


def _folded(weight: Tensor, parts: dict[str, Tensor]) -> Tensor:
    """Make the weight for unscaled inputs. AWQ scales them, unless the norm before does."""
    return weight * parts[_BEFORE].float() if _BEFORE in parts else weight
