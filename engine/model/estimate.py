"""Estimate: what a model would take, and whether that fits, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.model.memory import MIN_TOKENS


class Fit(StrEnum):
    """Whether a model fits into some memory."""

    FULL = "fits"
    SHORTER = "fits with a smaller context"
    NOT = "does not fit"
    UNKNOWN = "known after the download"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory that a model takes; None is what is not known.

    The largest step is not in it: it takes some more, which shows when the model is loaded.

    Attributes:
        weight_bytes: bytes of the weights, in the type that they are loaded as.
        token_bytes: bytes of the keys and values of one token.
        context_length: tokens of a full context.
    """

    weight_bytes: int | None
    token_bytes: int | None
    context_length: int | None

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
        if self.weight_bytes is None or self.token_bytes is None:
            return None
        return max(0, budget - self.weight_bytes) // self.token_bytes

    def contexts(self, budget: int) -> int | None:
        """How many full contexts there is room for beside the weights."""
        tokens = self.tokens(budget)
        if tokens is None or self.context_length is None:
            return None
        return tokens // self.context_length
