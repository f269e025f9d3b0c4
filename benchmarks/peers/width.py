"""Width: how many bits a weight has, and what the weights of a model take in it at least."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

_PLAIN_BYTES = 2  # of a weight in bfloat16, and of a scale


@dataclass(frozen=True, slots=True)
class Width:
    """A width of weights.

    Attributes:
        name: as `--weights` has it.
        group: how many weights of a row share a scale; None is all of them.
    """

    name: str
    bits: int
    group: int | None = None

    @property
    def is_quantized(self) -> bool:
        return self.bits < 8 * _PLAIN_BYTES

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """The bytes of a matrix: its weights, and the scales of its rows or groups."""
        if not self.is_quantized:
            return rows * columns * _PLAIN_BYTES
        scales = rows * -(-columns // (self.group or columns))
        return rows * columns * self.bits // 8 + scales * _PLAIN_BYTES


BF16 = Width("bf16", 16)
WIDTHS = {width.name: width for width in (BF16, Width("int8", 8), Width("int4", 4, 64))}


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model in a width.

    Attributes:
        nbytes: what they take if every matrix has that width, the embedding among them. Norms and
            biases stay in bfloat16.
    """

    width: Width
    nbytes: int

    @classmethod
    def of(cls, checkpoint: Path, width: Width) -> Weights:
        """Those of a checkpoint that is one file, by the shapes of its tensors."""
        nbytes = 0
        with safe_open(checkpoint / "model.safetensors", "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, for it is no mapping
                shape = tensors.get_slice(name).get_shape()
                if len(shape) == 2:
                    nbytes += width.matrix_bytes(*shape)
                else:
                    nbytes += BF16.matrix_bytes(1, shape[0])
        return cls(width, nbytes)
