"""MXFP4: the experts of gpt-oss, with an exponent for each 32 numbers of 4 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint
from engine.model.files.stored import StoredWeight, plain

_BLOCKS, _SCALES = "_blocks", "_scales"


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: blocks have no scales.
    """
    tensors = {tensor.name: tensor for tensor in checkpoint.tensors}
    for name, tensor in tensors.items():
        if name.endswith(_BLOCKS):
            base = name.removesuffix(_BLOCKS)
            scales = tensors.get(base + _SCALES)
            if scales is None:
                raise ModelError(f"{checkpoint.folder} has {name} and lacks {base}{_SCALES}")
            yield StoredWeight(base, {"blocks": tensor, "scales": scales}, _unpack)
        elif not (name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in tensors):
            yield plain(tensor)


def _unpack(parts: dict[str, Tensor]) -> Tensor:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    # Powers of two times 4 bits are exact in this type.
    dense: Tensor = convert_moe_packed_tensors(
        parts["blocks"], parts["scales"], dtype=torch.bfloat16
    )
    return dense
