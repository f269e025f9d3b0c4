"""PromptMaker: random token ids of a wanted length that share no prefix unless told to."""

from __future__ import annotations

import numpy as np

_POOL = 1 << 16
_MARKED = 4


class PromptMaker:
    """Makes prompts for a benchmark.

    A prompt is a mark, its number in the base of the vocabulary, and then a slice of one pool of
    random ids, at a random place. The mark keeps two prompts from being the same, so that the
    prefix cache finds nothing by chance; the slice costs 8 bytes a token, for it holds the pool's
    own integers, and no time (drawing each id takes 100 times as long).

    Args:
        vocab_size: ids are from 0 to below this.
    """

    def __init__(self, vocab_size: int, rng: np.random.Generator) -> None:
        self._vocab_size = vocab_size
        self._rng = rng
        self._pool: list[int] = rng.integers(0, vocab_size, _POOL).tolist()
        self._made = 0

    def make(self, length: int) -> list[int]:
        """`length` ids that no other prompt of this maker begins with."""
        number, self._made = self._made, self._made + 1
        ids = []
        for _ in range(_MARKED):
            number, digit = divmod(number, self._vocab_size)
            ids.append(digit)
        start = int(self._rng.integers(_POOL))
        while len(ids) < length:
            ids += self._pool[start : start + length - len(ids)]
            start = 0
        return ids[:length]
