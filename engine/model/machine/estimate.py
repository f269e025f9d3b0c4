"""Estimate: a model's memory, and whether it fits, as far as that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from engine.model.files.checkpoint import INTEGERS, Checkpoint, StoredTensor
from engine.model.machine.memory import MIN_TOKENS

# Bytes of a number in a matrix product, with its share of its group's scale.
_QUANTIZED = {"int8": 1 + 2 / 128, "int4": 1 / 2 + 2 / 32}
_HEAD = "int8"


class Fit(StrEnum):
    """Whether a model fits into some memory."""

    FULL = "fits"
    SHORTER = "fits with a smaller context"
    NOT = "does not fit"
    UNKNOWN = "known after the download"


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many numbers of a model's weights quantization shrinks.

    Attributes:
        products: numbers in the layers' matrix products.
        head: numbers in the output head, which a tied embedding shares.
    """

    products: int
    head: int = 0

    @staticmethod
    def of(checkpoint: Checkpoint, vocab_size: int) -> Numbers:
        """Count them in a checkpoint by shape: norms and biases have one axis, embedding and head a
        side as long as the vocabulary. Packed numbers are left out.
        """
        matrices = [t.shape for t in checkpoint.tensors if len(t.shape) > 1 and not _is_packed(t)]
        tables = [math.prod(shape) for shape in matrices if vocab_size in shape]
        return Numbers(sum(map(math.prod, matrices)) - sum(tables), max(tables, default=0))

    def saved(self, width: str, dtype_bytes: int) -> int:
        """Bytes saved by quantization.

        Args:
            width: one of `engine.api.config.QUANTIZATIONS`.
            dtype_bytes: bytes of an unquantized number.
        """
        if width == "none":
            return 0
        quantized = self.products * _QUANTIZED[width] + self.head * _QUANTIZED[_HEAD]
        return int((self.products + self.head) * dtype_bytes - quantized)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory that a model takes; None where unknown.

    It does not include the largest step, whose size is known only when the model is loaded.

    Attributes:
        weight_bytes: bytes of the weights, in the type in which they are loaded.
        saved_bytes: how many of these quantization saves.
        is_about: whether that assumes that all numbers belong to products, for lack of information.
        token_bytes: bytes of the keys and values of one token.
        context_length: tokens of a full context.
    """

    weight_bytes: int | None
    token_bytes: int | None
    context_length: int | None
    saved_bytes: int = 0
    is_about: bool = False

    @property
    def served_bytes(self) -> int | None:
        """Bytes of the weights when served."""
        return None if self.weight_bytes is None else self.weight_bytes - self.saved_bytes

    @property
    def context_bytes(self) -> int | None:
        """Bytes of the keys and values of a full context."""
        if self.token_bytes is None or self.context_length is None:
            return None
        return self.token_bytes * self.context_length

    def fit(self, budget: int) -> Fit:
        """Whether it fits, with one full context or a smaller one.

        Args:
            budget: bytes for weights and cache together.
        """
        if self.weight_bytes is None:
            return Fit.UNKNOWN
        if self.weight_bytes > budget:
            return Fit.NOT
        tokens = self.tokens(budget)
        if tokens is None or self.context_length is None:
            return Fit.UNKNOWN
        if tokens >= self.context_length:
            return Fit.FULL
        return Fit.SHORTER if tokens >= MIN_TOKENS else Fit.NOT

    def tokens(self, budget: int) -> int | None:
        """How many tokens of cache fit beside the weights."""
        if self.served_bytes is None or self.token_bytes is None:
            return None
        return max(0, budget - self.served_bytes) // self.token_bytes

    def contexts(self, budget: int) -> int | None:
        """How many full contexts fit beside the weights."""
        tokens = self.tokens(budget)
        if tokens is None or self.context_length is None:
            return None
        return tokens // self.context_length


def _is_packed(tensor: StoredTensor) -> bool:
    """Whether a tensor stores numbers of few bits, from which others are computed."""
    return tensor.dtype in INTEGERS or tensor.dtype.startswith("F8")
