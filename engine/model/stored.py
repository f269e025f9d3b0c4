"""StoredWeight: a weight of a model, and the tensors on disk that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.api.errors import ModelError
from engine.model.checkpoint import INTEGERS, Checkpoint, StoredTensor

_ITSELF = "itself"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """How one weight is read.

    Attributes:
        name: as the model's own checkpoints name it.
        parts: what is read for it, by names that `unpack` knows.
        unpack: makes the weight of its parts. It is called in several threads at a time, once for
            each weight, and may keep the parts' memory.
    """

    name: str
    parts: Mapping[str, StoredTensor]
    unpack: Callable[[dict[str, Tensor]], Tensor]


def plain(tensor: StoredTensor) -> StoredWeight:
    """A weight that is stored as it is.

    Raises:
        ModelError: its numbers mean nothing without a scale.
    """
    packed = tensor.name.endswith(".weight") and tensor.dtype in INTEGERS
    if packed or tensor.dtype.startswith("F8_"):
        raise ModelError(
            f"{tensor.file} stores {tensor.name} as {tensor.dtype}, and nothing says by what it is "
            "scaled"
        )
    return StoredWeight(tensor.name, {_ITSELF: tensor}, _itself)


def plain_weights(checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of a checkpoint that is not quantized.

    Raises:
        ModelError: it is quantized all the same.
    """
    return map(plain, checkpoint.tensors)


def _itself(parts: dict[str, Tensor]) -> Tensor:
    return parts[_ITSELF]
