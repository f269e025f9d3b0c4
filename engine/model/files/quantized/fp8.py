"""Fine-grained FP8: a scale for each block of a matrix (DeepSeek, Qwen3-FP8, MiniMax), or for all
of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint, StoredTensor
from engine.model.files.stored import StoredWeight, plain

_SCALE = "_scale_inv"  # a historic name: weights are multiplied with it
_ACTIVATION_SCALES = (".activation_scale", ".input_scale")


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: a weight has no scale, or scales for another number of blocks.
    """
    block = stated.get("weight_block_size")
    tensors = {tensor.name: tensor for tensor in checkpoint.tensors}
    for name, tensor in tensors.items():
        scale = tensors.get(name + _SCALE)
        if scale is not None:
            repeats = _repeats(tensor, scale, block)
            parts = {"weight": tensor, "scale": scale}
            yield StoredWeight(name, parts, partial(_unpack, repeats))
        elif not name.endswith((_SCALE, *_ACTIVATION_SCALES)):
            yield plain(tensor)


def _repeats(tensor: StoredTensor, scale: StoredTensor, block: Any) -> tuple[int, int]:
    """How often to repeat each scale along rows and columns for transformers.

    transformers takes the quotient of the sides as the size of a block, which is wrong if the last
    block is cut. Then the scales are repeated, so that each row has its own.
    """
    sides, grid = tensor.shape[-2:], scale.shape[-2:]
    if len(sides) < 2 or len(grid) < 2 or math.prod(grid) == 1:
        return 1, 1
    sizes = block if isinstance(block, list) and len(block) == 2 else [None, None]
    repeats = []
    for side, count, stated in zip(sides, grid, sizes, strict=True):
        size = stated if type(stated) is int else side // max(count, 1)
        if size < 1 or math.ceil(side / size) != count:
            raise ModelError(
                f"{scale.file} has {scale.name} of shape {scale.shape}, which is not a scale for "
                f"each block of {block} of {tensor.shape}"
            )
        repeats.append(1 if count == 1 or side == size * count else size)
    return repeats[0], repeats[1]


def _unpack(repeats: tuple[int, int], parts: dict[str, Tensor]) -> Tensor:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight, scale = parts["weight"], parts["scale"]
    for axis, times in zip((-2, -1), repeats, strict=True):
        if times > 1:
            scale = scale.repeat_interleave(times, axis).narrow(axis, 0, weight.shape[axis])
    if scale.dtype in (torch.float16, torch.bfloat16):
        scale = scale.float()  # The result has the type of the scale, and is cast afterwards.
    operation: Any = Fp8Dequantize
    found = operation(None).convert(
        {"weight": weight, "weight_scale_inv": scale}, full_layer_name="weight"
    )
    dense: Tensor = found["weight"]
    return dense
