"""Quantization: how a model's weights are quantized, and the effect of that, in words."""

from __future__ import annotations

from engine.api.status import ModelCard, QuantizationLoss
from widgets.figures import count, fine_percent


def briefly(card: ModelCard) -> str:
    """In two words, beside a model's name: int8 98.9%; empty if no weights are packed."""
    share = f" {fine_percent(card.loss.equal_best)}" if card.loss is not None else ""
    return _if_packed(card, f"{_kind(card)}{share}")


def shortly(card: ModelCard) -> str:
    """For a line with enough space: int8, 98.9% equal best; empty if no weights are packed."""
    share = f", {fine_percent(card.loss.equal_best)} equal best" if card.loss is not None else ""
    return _if_packed(card, f"{_kind(card)}{share}")


def in_full(card: ModelCard) -> str:
    """A clause with all details; empty if no weights are packed."""
    clause = f"weights quantized to {card.quantize}"
    if card.packed_as:
        clause = f"weights stay packed as {card.packed_as} has them, activations take 15 bits"
    if card.rounded_to:
        clause = f"weights of {card.packed_as} rounded to {card.rounded_to}, activations to 15 bits"
    if (loss := card.loss) is not None:
        clause += f": after {_compared(loss)} {_STAYS}; divergence {_divergence(loss)} nats a token"
    return _if_packed(card, clause)


def loss_in_full(loss: QuantizationLoss) -> str:
    """A clause about the loss."""
    return f"{_STAYS} after {_compared(loss)}, divergence {_divergence(loss)} nats a token"


_STAYS = "the likeliest next token stays the same"


def _kind(card: ModelCard) -> str:
    if card.rounded_to:
        return f"{card.packed_as} as {card.rounded_to}"
    return card.packed_as or card.quantize


def _if_packed(card: ModelCard, clause: str) -> str:
    return clause if _kind(card) != "none" else ""


def _compared(loss: QuantizationLoss) -> str:
    return f"{fine_percent(loss.equal_best)} of {count(loss.tokens)} tokens"


def _divergence(loss: QuantizationLoss) -> str:
    """Two significant digits: 0.0013, 0.41."""
    return f"{loss.divergence:.2g}" if loss.divergence >= 1e-4 else "below 0.0001"
