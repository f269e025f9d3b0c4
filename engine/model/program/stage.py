"""Stage: one operation of a graph, as a part of a program on any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import Operation


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of a program that computes one operation.

    Attributes:
        first, last: the program's instructions [first, last).
        changed: the instructions [first, changed) change inputs in place (`Operation.changes`).
        out: [rows, width], its result.
        given: inputs for torch, of an opaque module or of an operation assigned to torch; or those
            that change in place; empty for other operations.
        is_coded: whether it multiplies quantized weights, and so rounds its input to integers; or
            looks up rows of such.
    """

    operation: Operation
    first: int
    changed: int
    last: int
    out: Tensor
    given: tuple[Tensor, ...]
    is_coded: bool = False


def segments(stages: list[Stage]) -> Iterator[tuple[int, int, Stage | None]]:
    """Runs of instructions, each with the stage that torch runs after it, if any."""
    first = last = stages[0].first if stages else 0
    for stage in stages:
        if stage.operation.in_torch:
            yield first, last, stage
            first = last = stage.last
        else:
            last = stage.last
    yield first, last, None


def num_of_tokens(stages: list[Stage]) -> int:
    """Number of stages before the first one that computes only tokens whose logits are needed.
    `engine.model.program.fuse` puts these last.
    """
    return next(at for at, stage in enumerate(stages) if stage.operation.out.per_sample)
