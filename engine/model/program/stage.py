"""Stage: what one operation of a graph became, whatever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import ByTorch, Opaque, Operation


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of a program that computes one operation.

    Attributes:
        first, last: the program's instructions [first, last).
        rotated: the instructions [first, rotated) of attention rotate queries and keys; `first` for
            all else.
        out: [rows, width], where its result goes.
        given: what torch is to read, the input of an opaque module or all that an operation reads
            which was set apart; or query and key of attention, which are rotated in place; empty
            for other operations.
        is_coded: whether it multiplies quantized weights, and so makes whole numbers of its input;
            or looks up rows of such.
    """

    operation: Operation
    first: int
    rotated: int
    last: int
    out: Tensor
    given: tuple[Tensor, ...]
    is_coded: bool = False


def segments(stages: list[Stage]) -> Iterator[tuple[int, int, Stage | None]]:
    """Runs of instructions, each with what torch is to run after it, if anything."""
    first = last = stages[0].first if stages else 0
    for stage in stages:
        if isinstance(stage.operation, Opaque | ByTorch):
            yield first, last, stage
            first = last = stage.last
        else:
            last = stage.last
    yield first, last, None


def num_of_tokens(stages: list[Stage]) -> int:
    """How many stages there are before the first one of which each result is of a token whose
    logits are wanted. `engine.model.program.fuse` puts these last.
    """
    return next(at for at, stage in enumerate(stages) if stage.operation.out.per_sample)
