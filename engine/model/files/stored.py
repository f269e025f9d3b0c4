"""StoredWeight: a weight of a model, and the stored tensors that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.api.errors import ModelError
from engine.model.files.checkpoint import FLOATS, INTEGERS, Checkpoint, StoredTensor

_ITSELF = "itself"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """How to read one weight.

    Attributes:
        name: name in the model's own checkpoints.
        parts: the tensors to read, by their names for `unpack`.
        unpack: makes the weight from its parts. Several threads call it at a time, once for each
            weight, and it may keep the parts' memory.
        blocks: returns the stored form: rows of GGUF's blocks, uint8 [rows, bytes], or numbers.
            None if it is neither, or not a matrix.
        kind: GGUF's name of the blocks' type; empty for numbers.
        shape: shape of the weight, if it has blocks.
    """

    name: str
    parts: Mapping[str, StoredTensor]
    unpack: Callable[[dict[str, Tensor]], Tensor]
    blocks: Callable[[dict[str, Tensor]], Tensor] | None = None
    kind: str = ""
    shape: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes to read for it."""
        return sum(part.num_bytes for part in self.parts.values())

    @property
    def itself(self) -> StoredTensor | None:
        """The stored tensor, if the weight is a single one, unchanged."""
        return self.parts[_ITSELF] if self.unpack is _itself else None

    @property
    def is_unpacked(self) -> bool:
        """Whether it is stored as codes, and read as numbers because no kernel multiplies these."""
        return not self.kind and any(part.dtype not in FLOATS for part in self.parts.values())


def plain(tensor: StoredTensor) -> StoredWeight:
    """A weight that is stored unchanged.

    Raises:
        ModelError: its numbers are meaningless without a scale.
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
    """The weights of an unquantized checkpoint.

    Raises:
        ModelError: it is quantized after all.
    """
    return map(plain, checkpoint.tensors)


def _itself(parts: dict[str, Tensor]) -> Tensor:
    return parts[_ITSELF]
