"""verify: compares each operation of a program with the model's own results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.program.agree import differences
from engine.model.program.graph import Operation
from engine.model.program.opaque import Opaque
from engine.model.program.operations.kerneled import ByTorch, Kerneled
from engine.model.program.stage import Stage

# The largest `difference`, by the type of the computation. A wrong kernel is off by tenths. A right
# one is off by some thousandths in bfloat16, because it keeps in float32 what the model rounds
# between two operations. A single row may be off by more, if large numbers cancel out in a sum.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}


@dataclass(frozen=True, slots=True)
class Wrong:
    """An operation whose kernel cannot be used.

    Attributes:
        at: its index among the graph's operations.
        kind: name of the operation, in lower case.
        columns: columns of its result.
        reason: the kernel's fault, as a clause.
    """

    at: int
    kind: str
    columns: int
    reason: str


class MismatchError(Exception):
    """A kernel computes something different from the model.

    Attributes:
        wrong: the operations whose kernels are wrong, if torch can compute these and kernels the
            others; empty if only torch can compute the model.
    """

    def __init__(self, message: str, wrong: Sequence[Wrong] = ()) -> None:
        super().__init__(message)
        self.wrong = tuple(wrong)


def mismatch(wrong: Sequence[Wrong]) -> MismatchError:
    """The error that states the fault of each kind of operation, and of each width."""
    kinds: dict[tuple[str, int], list[Wrong]] = defaultdict(list)
    for one in wrong:
        kinds[one.kind, one.columns].append(one)
    said = [
        f"the kernel for {kind} {ones[0].reason} ({columns} columns"
        + (f", {len(ones)} operations)" if len(ones) > 1 else ")")
        for (kind, columns), ones in kinds.items()
    ]
    return MismatchError("; ".join(said), wrong)


def verify(
    stages: Sequence[Stage],
    run: Callable[[Stage, int, int], None],
    restore: Callable[[Operation], None] = lambda operation: None,
    *,
    dtype: torch.dtype = torch.float32,
) -> float:
    """Run one operation after another, each on the model's own numbers.

    Args:
        stages: stages of a program that is attached to a pool.
        run: runs the instructions [first, last) of a stage on the recorded pass, or torch in their
            place.
        restore: stores the recorded rotated keys, and the values, for attention, if the program's
            rotation has stored its own. It is called between the parts of an operation that changes
            inputs in place.
        dtype: type of the program.

    Returns:
        the largest difference.

    Raises:
        MismatchError: some differ by more than rounding explains.
    """
    worst = 0.0
    wrong: dict[int, Wrong] = {}
    for at, stage in enumerate(stages):
        operation = stage.operation
        first = stage.first
        for last, expected in _parts(stage):
            if not isinstance(operation, Opaque):
                run(stage, first, last)
                for buffer, reference in expected:
                    found = difference(buffer[: len(reference)], reference)
                    # What the model keeps in float32 for an operation or two is rounded here.
                    types = (buffer.dtype, reference.dtype, dtype)
                    most = max(TOLERANCE[one] for one in types)
                    if stage.is_coded and isinstance(operation, Kerneled):
                        most = max(most, operation.coded_tolerance)
                    if found <= most:  # NaN is a mismatch too
                        worst = max(worst, found)
                    else:
                        wrong.setdefault(at, _wrong(at, operation, found))
            for buffer, reference in expected:
                buffer[: len(reference)] = reference
            if operation.changes() and last == stage.changed:
                restore(operation)
            first = last
    for at, one in wrong.items():
        if isinstance(stages[at].operation, ByTorch):
            raise MismatchError(f"{one.kind} by torch {one.reason} too ({one.columns} columns)")
    if wrong:
        raise mismatch(list(wrong.values()))
    return worst


def _wrong(at: int, operation: Operation, found: float) -> Wrong:
    reason = f"differs from the model by {found:.2g}"
    return Wrong(at, operation.kind, operation.out.width, reason)


def _parts(stage: Stage) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
    """The parts of a stage: the end of each one's instructions, and the (buffer, numbers) that must
    agree then.
    """
    operation = stage.operation
    changes = operation.changes()
    if changes:
        # Attention is verified separately from the rotation. If large biases make large scores
        # (Qwen 2), rounding in the rotation changes the weights of attention.
        recorded = [reference for _, reference in changes]
        yield stage.changed, list(zip(stage.given, recorded, strict=True))
    yield stage.last, [(stage.out, operation.out.reference)]


def difference(got: Tensor, expected: Tensor) -> float:
    """The root mean square of the rows' differences (`differences`)."""
    return float(differences(got, expected).square().mean().sqrt())
