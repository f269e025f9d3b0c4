"""Held: in which types a peer holds a model's matrices, in words, by what its file says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def held(types: Iterable[str], table: str) -> str:
    """Tell the types.

    Args:
        types: of each matrix of the layers.
        table: of the matrix that is both embedding and head.
    """
    counted = Counter(types).most_common()
    layers = ", ".join(f"{count} in {name}" for name, count in counted)
    return f"matrices of the layers: {layers}; embedding and head in {table}"
