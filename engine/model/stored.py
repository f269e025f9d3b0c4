"""StoredWeight: a weight of a model, and the tensors on disk that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.api.errors import ModelError
from engine.model.checkpoint import FLOATS, INTEGERS, Checkpoint, StoredTensor

_ITSELF = "itself"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """How one weight is read.

    Attributes:
        name: as the model's own checkpoints name it.
        parts: what is read for it, by names that `unpack` knows.
        unpack: makes the weight of its parts. It is called in several threads at a time, once for
            each weight, and may keep the parts' memory.
        blocks: gives the weight as it is stored: as rows of GGUF's blocks, uint8 [rows, bytes], or
            as numbers. None where it is neither, or no matrix.
        kind: GGUF's name of the blocks' type; empty for numbers.
        shape: of the weight, where there are blocks.
    """

    name: str
    parts: Mapping[str, StoredTensor]
    unpack: Callable[[dict[str, Tensor]], Tensor]
    blocks: Callable[[dict[str, Tensor]], Tensor] | None = None
    kind: str = ""
    shape: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is read for it."""
        return sum(part.num_bytes for part in self.parts.values())

    @property
    def itself(self) -> StoredTensor | None:
        """The tensor that it is, if it is one as it is stored."""
        return self.parts[_ITSELF] if self.unpack is _itself else None

    @property
    def is_unpacked(self) -> bool:
        """Whether it is stored as codes, and read as numbers for want of a kernel for these."""
        return not self.kind and any(part.dtype not in FLOATS for part in self.parts.values())


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
    is_matrix = len(tensor.shape) >= 2 and tensor.dtype not in INTEGERS
    return StoredWeight(
        tensor.name,
        {_ITSELF: tensor},
        _itself,
        blocks=_itself if is_matrix else None,
        shape=tensor.shape,
    )


def plain_weights(checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of a checkpoint that is not quantized.

    Raises:
        ModelError: it is quantized all the same.
    """
    return map(plain, checkpoint.tensors)


def _itself(parts: dict[str, Tensor]) -> Tensor:
    return parts[_ITSELF]
