"""Whether Triton's interpreter stands in for a GPU."""

from __future__ import annotations


def is_interpreted() -> bool:
    """Whether the kernels are interpreted, on tensors in main memory, and not compiled."""
    from triton import knobs

    interpreted: bool = knobs.runtime.interpret
    return interpreted
