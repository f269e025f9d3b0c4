"""HostStore: the memory behind the host pool, with copies to and from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.api.errors import ModelError

# Torch rounds pinned allocations up to a power of two, which would nearly double some sizes. So the
# pool consists of segments of this size, of which only the last may be smaller.
_SEGMENT_BYTES = 1 << 28


class HostMemoryError(ModelError):
    """Host memory for swapping could not be allocated."""


class HostStore:
    """Rows of numbers in host memory. Each holds one host block: its keys and values in all layers.

    Copies run in the order of the device's stream, and nothing waits for them. Only later copies of
    the same stream read or write a row, so none of them sees it half copied, and the host itself
    never reads it.

    Args:
        width: numbers of a row.
        pinned: whether the memory is page-locked, so that a GPU can copy to it directly.

    Raises:
        HostMemoryError: the memory could not be allocated, or not pinned.
    """

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, *, pinned: bool) -> None:
        self.row_bytes = max(width * dtype.itemsize, 1)  # no layer may attend
        self._rows = max(1, _SEGMENT_BYTES // self.row_bytes)
        # Memory that is not pinned is allocated by the system when first touched.
        try:
            self._segments = [
                torch.empty(
                    min(self._rows, num_rows - first), width, dtype=dtype, pin_memory=pinned
                )
                for first in range(0, num_rows, self._rows)
            ]
        except RuntimeError as error:
            raise HostMemoryError(
                f"{num_rows * self.row_bytes} bytes of host memory for swapping (swap_memory) "
                f"cannot be allocated: {error}"
            ) from error

    def fill(self, rows: Sequence[int], source: Tensor) -> None:
        """Copy [n, width] to these rows."""
        for first, last, segment in self._runs(rows):
            segment.copy_(source[first:last], non_blocking=True)

    def read(self, rows: Sequence[int], target: Tensor) -> None:
        """Copy these rows to [n, width]."""
        for first, last, segment in self._runs(rows):
            target[first:last].copy_(segment, non_blocking=True)

    def _runs(self, rows: Sequence[int]) -> Iterator[tuple[int, int, Tensor]]:
        """Segments [first, last) of `rows` that are adjacent, each with its memory."""
        first = 0
        for i, row in enumerate(rows):
            ends = i + 1 == len(rows) or rows[i + 1] != row + 1
            if ends or rows[i + 1] % self._rows == 0:
                segment, place = divmod(rows[first], self._rows)
                yield first, i + 1, self._segments[segment][place : place + i + 1 - first]
                first = i + 1
