"""verify: compares each operation of a program with what the model itself computed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.model.program.agree import differences
from engine.model.program.build import Built, Stage
from engine.model.program.capture import Capture
from engine.model.program.graph import Attend, Opaque

# The largest root mean square of the rows' differences. A wrong kernel is off by tenths. A right
# one is off by some thousandths in bfloat16, because it keeps in float32 what the model rounds
# between two operations. A single row may be off by more, where large numbers cancel out in a sum.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02}


class MismatchError(Exception):
    """A kernel computes something else than the model."""


def recorded_step(native: ModuleType, recorded: Capture, block_size: int) -> Any:
    """The recorded pass as a step: one sequence, in blocks 0, 1 and so on."""
    tokens = len(recorded.input_ids)
    return native.Step(
        recorded.input_ids.numpy(),
        recorded.position_ids.numpy(),
        np.arange(tokens),  # slots
        np.zeros(1, np.int64),
        np.full(1, tokens, np.int64),
        np.arange(-(-tokens // block_size), dtype=np.int64)[None],
        recorded.last_tokens.numpy(),
    )


def verify(built: Built, step: Any) -> float:
    """Run operation after operation, each on the model's own numbers.

    Args:
        step: the recorded step; the program has been attached to a pool with its blocks.

    Returns:
        the largest difference that was found.

    Raises:
        MismatchError: one is larger than rounding explains.
    """
    worst = 0.0
    for stage in built.stages:
        operation = stage.operation
        first = stage.first
        for last, expected in _parts(stage):
            if not isinstance(operation, Opaque):
                built.program.run(step, first, last)
                for buffer, reference in expected:
                    difference = _difference(buffer[: len(reference)], reference)
                    worst = max(worst, difference)
                    if not difference <= _TOLERANCE[reference.dtype]:  # NaN is a mismatch too
                        raise MismatchError(
                            f"the kernel for {type(operation).__name__.lower()} differs from the "
                            f"model by {difference:.2g} ({operation.out.width} columns)"
                        )
            for buffer, reference in expected:
                buffer[: len(reference)] = reference
            first = last
    return worst


def _parts(stage: Stage) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
    """The parts of a stage: where the instructions of each end, and which (buffer, numbers) are to
    agree then.
    """
    operation = stage.operation
    if isinstance(operation, Attend):
        # Attention is verified apart from the rotation. Where large biases make large scores (Qwen
        # 2), rounding in the rotation changes what is attended to.
        rotations = (operation.query_rotation, operation.key_rotation)
        rotated = list(zip(stage.given, operation.rotated, strict=True))
        yield stage.first + sum(one is not None for one in rotations), rotated
    yield stage.last, [(stage.out, operation.out.reference)]


def _difference(got: Tensor, expected: Tensor) -> float:
    return float(differences(got, expected).square().mean().sqrt())
