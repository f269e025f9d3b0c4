"""Overlap: a kernel starts while the previous one still runs, and waits for it only where
necessary.

By programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and
Synchronization"; PTX ISA, griddepcontrol), from sm_90 on. A kernel's cost beside its work, its
start and its addresses, is then paid during the kernel before. Every kernel keeps one rule:

- It first lets the next one start, which waits for this one's end, not for this signal.
- Before its own wait it reads only what no launch of a step ever writes: weights and biases. It
  writes nothing.
- All of its programs wait, also those with nothing to do. A wait is for the kernel before alone.
  Since that kernel waited for the ones before it, these are over too, and their results are
  visible.

Others, such as cuBLAS's kernels and copies, are launched as ever: they start when all launches
before them are over, and our kernel after them waits for their end. A copy lets nothing start
early: "only kernel nodes define non-zero ports" (CUDA Driver API, CUgraphEdgeData).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import triton
import triton.language as tl

from engine.triton.interpreter import is_interpreted

_overlaps: ContextVar[bool] = ContextVar("overlaps", default=False)


@triton.jit
def let_next_start(OVERLAP: tl.constexpr):
    """Allow the next kernel's programs to start once all programs of this one have reached this
    call."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Wait until the previous kernel has ended and its results are visible."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@contextmanager
def overlapping(on: bool) -> Iterator[None]:
    """Make kernels that this thread launches overlap, or not. The interpreter runs one program
    after the other, so that nothing overlaps.
    """
    before = _overlaps.set(on and not is_interpreted())
    try:
        yield
    finally:
        _overlaps.reset(before)


def launch_options() -> dict[str, bool]:
    """Further arguments of each launch: the constant `OVERLAP` of its kernel, and Triton's option
    to launch it before the end of the kernel before.
    """
    return {"OVERLAP": True, "launch_pdl": True} if _overlaps.get() else {"OVERLAP": False}
