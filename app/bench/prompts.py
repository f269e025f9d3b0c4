"""PromptMaker: prompts of random token ids that share no prefix."""

from __future__ import annotations

import numpy as np

_POOL = 1 << 16
_MARKED = 4


class PromptMaker:
    """Makes prompts for a benchmark.

    A prompt is a mark, followed by a slice of one pool of random ids from a random offset. The mark
    is the prompt's number, written in the base of the vocabulary size. It makes every prompt
    distinct, so that the prefix cache finds nothing by chance. The slice costs 8 bytes a token,
    because it shares the pool's integers, and hardly any time: drawing each id would take 100 times
    as long.

    Args:
        vocab_size: ids are drawn from 0 up to, but not including, this.
        rng: draws the pool, and the place of each slice.
    """

    def __init__(self, vocab_size: int, rng: np.random.Generator) -> None:
        self._vocab_size = vocab_size
        self._rng = rng
        self._pool: list[int] = rng.integers(0, vocab_size, _POOL).tolist()
        self._made = 0

    def make(self, length: int) -> list[int]:
        """Make a prompt of `length` ids that is no prefix of another prompt of this maker."""
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
