"""torchao: tensors of its own kinds, flattened into safetensors whose headers describe them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint
from engine.model.files.quantized.library import library
from engine.model.files.stored import StoredWeight, plain

_EXTRA = "torchao"
_MODULE = "torchao.prototype.safetensors.safetensors_support"
_NAMES = "tensor_names"


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: the library is missing, or the headers do not describe the weights.
    """
    said = checkpoint.metadata
    try:
        names = json.loads(said[_NAMES])
        kinds = {name: json.loads(said[name])["_type"] for name in names}
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ModelError(
            f"{checkpoint.folder} is quantized by torchao, and the headers of its safetensors do "
            "not say how; save it again with torchao 0.15 or newer"
        ) from None
    tensors = {tensor.name: tensor for tensor in checkpoint.tensors}
    found = []
    for name, kind in kinds.items():
        module, _, own = name.rpartition(".")
        prefix = f"{module}._{own}_"
        if kind == Tensor.__name__:
            if name in tensors:
                found.append(plain(tensors.pop(name)))
            continue
        wanted = json.loads(said[name]).get("_tensor_data_names")
        listed = isinstance(wanted, list) and all(isinstance(one, str) for one in wanted)
        if not listed or any(prefix + one not in tensors for one in wanted):
            raise ModelError(f"{checkpoint.folder} lacks parts of {name}")
        parts = {prefix + one: tensors.pop(prefix + one) for one in wanted}
        found.append(StoredWeight(name, parts, partial(_unpack, name, said[name])))
    library(_MODULE, _EXTRA, "torchao")
    return iter([*found, *map(plain, tensors.values())])


def _unpack(name: str, said: str, parts: dict[str, Tensor]) -> Tensor:
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    found, _ = unflatten_tensor_state_dict(parts, {name: said, _NAMES: json.dumps([name])})
    dense: Tensor = found[name].dequantize()
    return dense
