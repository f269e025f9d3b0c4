"""verify: compares each operation of a program with what the model itself computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.program.agree import differences
from engine.model.program.graph import Attend, ByTorch, Embed, Opaque, Operation, definition
from engine.model.program.stage import Stage

# The largest `difference`, by the type that is computed in. A wrong kernel is off by tenths. A
# right one is off by some thousandths in bfloat16, because it keeps in float32 what the model
# rounds between two operations. A single row may be off by more, where large numbers cancel out in
# a sum.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}


# Of products with quantized weights. Scales are rounded to float16, and x to 15 bits; where codes
# were recognized, the model's own weights had been rounded to bfloat16.
CODED_TOLERANCE = 0.02
# Of rows of codes that are looked up. Scales are products of two in some files, and are rounded to
# float16; where codes were recognized, numbers had been rounded to bfloat16.
CODED_TABLE_TOLERANCE = 0.005


@dataclass(frozen=True, slots=True)
class Wrong:
    """An operation whose kernel cannot be used.

    Attributes:
        at: its index among the graph's operations.
        kind: which operation it is, in lower case.
        columns: of its result.
        reason: what is wrong with the kernel, as a clause.
    """

    at: int
    kind: str
    columns: int
    reason: str


class MismatchError(Exception):
    """A kernel computes something else than the model.

    Attributes:
        wrong: the operations whose kernels are wrong, if torch may compute these and kernels the
            others; empty if nothing but torch may compute the model.
    """

    def __init__(self, message: str, wrong: Sequence[Wrong] = ()) -> None:
        super().__init__(message)
        self.wrong = tuple(wrong)


def mismatch(wrong: Sequence[Wrong]) -> MismatchError:
    """The error that says of each kind of operation, and of each width, what is wrong."""
    kinds: dict[tuple[str, int], list[Wrong]] = defaultdict(list)
    for one in wrong:
        kinds[one.kind, one.columns].append(one)
    said = [
        f"the kernel for {kind} {ones[0].reason} ({columns} columns"
        + (f", {len(ones)} operations)" if len(ones) > 1 else ")")
        for (kind, columns), ones in kinds.items()
    ]
    return MismatchError("; ".join(said), wrong)


def kind_of(operation: Operation) -> str:
    """The name of an operation for people; a module has its class's name."""
    found = definition(operation)
    return (
        type(found.module).__name__ if isinstance(found, Opaque) else type(found).__name__.lower()
    )


def verify(
    stages: Sequence[Stage],
    run: Callable[[Stage, int, int], None],
    restore: Callable[[Attend], None] = lambda attend: None,
    *,
    dtype: torch.dtype = torch.float32,
) -> float:
    """Run operation after operation, each on the model's own numbers.

    Args:
        stages: of a program that has been attached to a pool.
        run: runs the instructions [first, last) of a stage on the recorded pass, or what torch runs
            in their place.
        restore: puts the recorded rotated keys, and the values, where attention will read them, for
            a program whose rotation has stored its own.
        dtype: that the program computes in.

    Returns:
        the largest difference that was found.

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
                    if stage.is_coded:
                        is_table = isinstance(operation, Embed)
                        most = max(most, CODED_TABLE_TOLERANCE if is_table else CODED_TOLERANCE)
                    if found <= most:  # NaN is a mismatch too
                        worst = max(worst, found)
                    else:
                        wrong.setdefault(at, _wrong(at, operation, found))
            for buffer, reference in expected:
                buffer[: len(reference)] = reference
            if isinstance(operation, Attend) and last == stage.rotated:
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
    return Wrong(at, kind_of(operation), operation.out.width, reason)


def _parts(stage: Stage) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
    """The parts of a stage: where the instructions of each end, and which (buffer, numbers) are to
    agree then.
    """
    operation = stage.operation
    if isinstance(operation, Attend):
        # Attention is verified apart from the rotation. Where large biases make large scores (Qwen
        # 2), rounding in the rotation changes what is attended to.
        yield stage.rotated, list(zip(stage.given, operation.rotated, strict=True))
    yield stage.last, [(stage.out, operation.out.reference)]


def difference(got: Tensor, expected: Tensor) -> float:
    """The root mean square of the rows' differences (`differences`)."""
    return float(differences(got, expected).square().mean().sqrt())
