"""Matcher: follows one reply, and computes its next allowed tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

Bits = npt.NDArray[np.int32]

_WORD = 32
# Tokens of a replayed reply for which the interpreter's lock is held, some 2 us each.
_AT_ONCE = 256
# Reasons why llguidance allows no more text. All other reasons are failures.
_SOUND_STOPS = frozenset(("NotStopped", "NoExtension", "EndOfSentence"))


def num_words(vocab_size: int) -> int:
    """Number of words in a mask."""
    return -(-vocab_size // _WORD)


class Matcher:
    """Follows one reply. One thread at a time may use it.

    Args:
        matcher: llguidance's matcher, used only here.
        ends: token ids that end the output.
        barred: token ids at which the output would end, and for how many output tokens each is
            barred while any other token is allowed.

    Attributes:
        has_failed: whether it failed: a mask exceeded the bounds, or the reply does not follow the
            grammar.
    """

    def __init__(
        self, matcher: LLMatcher, ends: frozenset[int], barred: Mapping[int, float]
    ) -> None:
        self._matcher = matcher
        self._ends = ends
        # By the number of tokens for which they are barred. Each number's mask is made once: with
        # 1,024 of them in a loop, each step of each reply took 0.9 ms.
        self._barred: dict[float, list[int]] = {}
        for token, until in barred.items():
            self._barred.setdefault(until, []).append(token)
        self._kept: dict[float, npt.NDArray[np.uint32]] = {}
        self._num_tokens = 0
        self.has_failed = False

    def accept(self, token_ids: Sequence[int]) -> None:
        """Advance by the next tokens of the reply. Those that end the output change nothing."""
        self._num_tokens += len(token_ids)
        said = [token for token in token_ids if token not in self._ends]
        for begin in range(0, len(said), _AT_ONCE):
            if self.has_failed or not self._matcher.consume_tokens(said[begin : begin + _AT_ONCE]):
                self.has_failed = True

    def _settle(self, bits: Bits) -> None:
        """Complete the mask that llguidance computed.

        If nothing may follow, the tokens that end the output are allowed.
        """
        matcher = self._matcher
        if matcher.is_error() or matcher.stop_reason() not in _SOUND_STOPS:
            self.has_failed = True
            return
        barring = [until for until in self._barred if self._num_tokens < until]
        if barring:
            rest = bits.view(np.uint32).copy()
            for until in barring:
                rest &= self._all_but(until, len(bits))
            if rest.any():
                bits[:] = rest.view(np.int32)

    def _all_but(self, until: float, num_words: int) -> npt.NDArray[np.uint32]:
        """A mask of all tokens except those barred for this many output tokens."""
        if (kept := self._kept.get(until)) is None:
            tokens = np.array(self._barred[until], np.int64)
            tokens = tokens[tokens < num_words * _WORD]
            kept = self._kept[until] = np.full(num_words, 0xFFFFFFFF, np.uint32)
            lost = ~np.left_shift(np.uint32(1), (tokens % _WORD).astype(np.uint32))
            np.bitwise_and.at(kept, tokens // _WORD, lost)
        return kept

    @staticmethod
    def fill(matchers: Sequence[Matcher], bits: Bits, executor: LLExecutor) -> None:
        """Compute each reply's next allowed tokens. The interpreter's lock is free meanwhile.

        Args:
            bits: [len(matchers), words] gets a bit for each token, the lowest of a word first; none
                is set where a matcher has failed.
            executor: the threads that compute the masks.
        """
        from llguidance.numpy import fill_next_token_bitmask_par

        bits[:] = 0
        sound = [(one, row) for row, one in enumerate(matchers) if not one.has_failed]
        if sound:
            pairs = [(one._matcher, row) for one, row in sound]
            fill_next_token_bitmask_par(executor, pairs, bits)
        for one, row in sound:
            one._settle(bits[row])
            if one.has_failed:
                bits[row] = 0
