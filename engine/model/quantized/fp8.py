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
from engine.model.checkpoint import Checkpoint, StoredTensor
from engine.model.stored import StoredWeight, plain

_SCALE = "_scale_inv"  # the name is historic: it is what a weight is multiplied with
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
    """How often each scale is repeated along rows and columns before transformers sees it.

    transformers takes the quotient of the sides as the size of a block. Where the last block is
    cut, this is another size. There the scales are repeated, so that each row has its own.
    """
    sides, grid = tensor.shape[-2:], scale.shape[-2:]
    if len(sides) < 2 or len(grid) < 2 or math.prod(grid) == 1:
        return 1, 1
    if not isinstance(block, list) or len(block) != 2 or not all(type(b) is int for b in block):
        # Formats with a scale for each 32 numbers state no block; they cut none.
        block = [side // max(count, 1) for side, count in zip(sides, grid, strict=True)]
    repeats = [1, 1]
    for axis, (side, count, size) in enumerate(zip(sides, grid, block, strict=True)):
        whole = side % count == 0 if count else False
        if size > 0 and math.ceil(side / size) == count:
            repeats[axis] = 1 if count == 1 or side == size * count else size
        elif not whole or 0 < size < side:
            raise ModelError(
                f"{scale.file} has {scale.name} of shape {scale.shape}, which is no scale for each "
                f"block of {' by '.join(map(str, block))} of {tensor.shape}"
            )
    return repeats[0], repeats[1]


def _unpack(repeats: tuple[int, int], parts: dict[str, Tensor]) -> Tensor:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight, scale = parts["weight"], parts["scale"]
    for axis, times in zip((-2, -1), repeats, strict=True):
        if times > 1:
            scale = scale.repeat_interleave(times, axis).narrow(axis, 0, weight.shape[axis])
    if scale.dtype in (torch.float16, torch.bfloat16):
        scale = scale.float()  # The result has the type of the scale, and is cast when it is done.
    found = Fp8Dequantize(None).convert(
        {"weight": weight, "weight_scale_inv": scale}, full_layer_name="weight"
    )
    dense: Tensor = found["weight"]
    return dense
