"""Off path: the operations of a model that our kernels do not compute, and their cost, in words."""

from __future__ import annotations

from engine.api.status import ModelCard, OffPath
from widgets.figures import count, counted, percent


def briefly(card: ModelCard) -> str:
    """In a word or two: 2 ops off kernels, or off kernels if all are; empty if there are none."""
    if card.off_kernels:
        return "off kernels"
    number = card.num_off_path
    return f"{counted(number, 'op')} off kernels" if number else ""


def in_a_word(card: ModelCard) -> str:
    """As `briefly`, for narrow spaces: 2 ops off."""
    return briefly(card) if card.off_kernels else briefly(card).removesuffix(" kernels")


def in_full(card: ModelCard) -> str:
    """A clause on each kind of operation, with its cost and the reason; empty if there is none."""
    if card.off_kernels:
        return (
            f"it runs module by module, without our kernels for its operations: {card.off_kernels}"
        )
    kinds = "; ".join(f"{kind(one)} ({cost(one)}: {one.reason})" for one in card.off_path)
    return f"torch computes {counted(card.num_off_path, 'operation')}: {kinds}" if kinds else ""


def kind(operations: OffPath) -> str:
    """The kind of operation: linear of 576 columns."""
    return f"{operations.name} of {count(operations.columns)} columns"


def cost(operations: OffPath) -> str:
    """The number of operations, and their share of a step if that was measured."""
    number = counted(operations.count, "operation")
    if operations.share is None:
        return number
    return f"{number}, {percent(operations.share)} of a decode step"
