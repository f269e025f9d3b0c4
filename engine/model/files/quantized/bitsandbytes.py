"""bitsandbytes: NF4 and FP4 with nested statistics, and int8 with a scale for each row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint
from engine.model.files.quantized.grouping import by_module
from engine.model.files.quantized.library import library
from engine.model.files.stored import StoredWeight, plain

_EXTRA = "bitsandbytes"
_STATE = "weight.quant_state."


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: the library is missing; a weight has no statistics, or those of another weight.
    """
    library("bitsandbytes", _EXTRA, "bitsandbytes")
    for module, group in by_module(checkpoint).items():
        four = any(name.startswith(_STATE) for name in group)
        unpack = partial(_unpack_4bit, module) if four else _unpack_8bit if "SCB" in group else None
        if unpack is not None and "weight" not in group:
            raise ModelError(f"{checkpoint.folder} lacks {module}.weight")
        of_weight = {
            name: tensor
            for name, tensor in group.items()
            if name.startswith("weight.") or name in ("weight", "SCB")
        }
        if unpack is not None:
            yield StoredWeight(f"{module}.weight", of_weight, unpack)
        for name, tensor in group.items():
            if (unpack is None or name not in of_weight) and name != "weight_format":
                yield plain(tensor)


def _unpack_4bit(module: str, parts: dict[str, Tensor]) -> Tensor:
    import bitsandbytes

    packed = parts.pop("weight")
    # The first part of a statistic's name is ignored, but the library needs one.
    state = bitsandbytes.functional.QuantState.from_dict(parts, device=packed.device)
    dense: Tensor = bitsandbytes.functional.dequantize_4bit(packed, state)
    return dense


def _unpack_8bit(parts: dict[str, Tensor]) -> Tensor:
    import bitsandbytes

    dense: Tensor = bitsandbytes.functional.int8_vectorwise_dequant(parts["weight"], parts["SCB"])
    return dense
