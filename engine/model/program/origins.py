"""Origins: records which of a model's parameters were stored as codes and hold their values."""

from __future__ import annotations

from torch import Tensor


class Origins:
    """Records the first row of each weight that was unpacked from codes.

    transformers renames, merges and stacks weights when it reads them, but keeps rows unchanged: so
    a matrix that begins with such a row is made from codes, and one that was stored as floats is
    not mistaken for one.
    """

    def __init__(self) -> None:
        self._first_rows: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._first_rows)

    def add(self, weight: Tensor) -> None:
        """Record a weight [..., n, k], in the type of the model. Any thread may call this."""
        if weight.ndim in (2, 3):
            self._first_rows |= set(map(_bytes, _first_rows(weight)))

    def has(self, weight: Tensor) -> bool:
        """Whether all matrices of a weight [..., n, k] begin with such a row."""
        return all(_bytes(row) in self._first_rows for row in _first_rows(weight))


def _first_rows(weight: Tensor) -> Tensor:
    return weight[..., 0, :].reshape(-1, weight.shape[-1])


def _bytes(row: Tensor) -> bytes:
    # numpy does not support bfloat16.
    return row.detach().float().contiguous().numpy().tobytes()
