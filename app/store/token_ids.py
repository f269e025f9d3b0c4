"""Token ids: contexts as the store keeps them, each as what it adds to the one before."""

from __future__ import annotations

import sqlite3
import struct
from itertools import chain


def pack(ids: tuple[int, ...]) -> bytes:
    """Token ids as little-endian 32-bit integers."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack(rows: list[sqlite3.Row]) -> tuple[int, ...]:
    """The context of the first row, put together from those that it continues."""
    parts: list[tuple[int, ...]] = []
    end: int | None = None
    for row in rows:
        blob: bytes = row["context"]
        start: int = row["context_start"]
        ids = struct.unpack(f"<{len(blob) // 4}i", blob)
        if end is None or start < end:
            parts.append(ids if end is None else ids[: end - start])
            end = start
        if end == 0:
            break
    return tuple(chain.from_iterable(reversed(parts)))


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many leading token ids are the same."""
    if one == other[: len(one)]:
        return len(one)
    differing = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, len(other))
