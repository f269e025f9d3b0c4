"""Estimate: what a model would take, and whether that fits, as far as it is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from engine.model.checkpoint import INTEGERS, Checkpoint, StoredTensor
from engine.model.memory import MIN_TOKENS

# Bytes of a number that a product multiplies, with its share of the scale of its group.
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
    """How many numbers of a model's weights become less when they are quantized.

    Attributes:
        products: what the layers multiply.
        head: what gives the logits. If the embedding is tied to it, that is looked up in it.
    """

    products: int
    head: int = 0

    @staticmethod
    def of(checkpoint: Checkpoint, vocab_size: int) -> Numbers:
        """Those of a checkpoint: by their shapes, norms and biases have one axis, and embedding and
        head have a side as long as the vocabulary. Packed numbers are left out."""
        matrices = [t.shape for t in checkpoint.tensors if len(t.shape) > 1 and not _is_packed(t)]
        tables = [math.prod(shape) for shape in matrices if vocab_size in shape]
        return Numbers(sum(map(math.prod, matrices)) - sum(tables), max(tables, default=0))

    def saved(self, width: str, dtype_bytes: int) -> int:
        """How many bytes fewer they are once they are quantized.

        Args:
            width: of `engine.api.config.QUANTIZATIONS`.
            dtype_bytes: of a number before.
        """
        if width == "none":
            return 0
        quantized = self.products * _QUANTIZED[width] + self.head * _QUANTIZED[_HEAD]
        return int((self.products + self.head) * dtype_bytes - quantized)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory that a model takes; None is what is not known.

    The largest step is not in it: it takes some more, which shows when the model is loaded.

    Attributes:
        weight_bytes: bytes of the weights, in the type that they are loaded as.
        saved_bytes: how many of these are gone when the weights have been quantized.
        is_about: whether that takes all numbers for those of products, since nothing tells which
            are.
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
        """Bytes of the weights, as they are served."""
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
            budget: bytes that weights and cache may take together.
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
        """How many tokens of cache there is room for beside the weights."""
        if self.served_bytes is None or self.token_bytes is None:
            return None
        return max(0, budget - self.served_bytes) // self.token_bytes

    def contexts(self, budget: int) -> int | None:
        """How many full contexts there is room for beside the weights."""
        tokens = self.tokens(budget)
        if tokens is None or self.context_length is None:
            return None
        return tokens // self.context_length


def _is_packed(tensor: StoredTensor) -> bool:
    """Whether what is stored are numbers of few bits, of which others are made."""
    return tensor.dtype in INTEGERS or tensor.dtype.startswith("F8")
