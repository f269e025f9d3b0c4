"""Masks: computes the tokens that sequences' structures allow next, in parallel with steps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.batch.plan import NewSequence
from engine.structure.matcher import Bits, Matcher, num_words

if TYPE_CHECKING:
    from llguidance import LLExecutor

# Threads that compute masks of several rows at once. On a GPU a step waits for them, and on a
# processor they take time from the forward pass.
_MOST_THREADS = 8


class Allowed(NamedTuple):
    """The masks of a step.

    Attributes:
        rows: rows with a structure, at least one, in order.
        bits: [len(rows), words] int32, a bit for each token, the lowest of a word first.
        failed: those of `rows` whose structure can no longer be followed. They allow nothing.
        waited: seconds that the step waited.
    """

    rows: list[int]
    bits: Bits
    failed: list[int]
    waited: float


class _Structured:
    """A sequence with a structure.

    Attributes:
        masks: future masks of several sequences.
        place: index of this one among them.
    """

    __slots__ = ("_matcher", "_new", "masks", "place")

    def __init__(self, new: NewSequence) -> None:
        self.masks: Future[Bits]
        self.place = 0
        self._new = new
        self._matcher: Matcher | None = None

    def moved(self, token_ids: Sequence[int]) -> Matcher:
        """Its matcher, advanced by some tokens, on the thread that computes masks."""
        if self._matcher is None:
            new, sampling = self._new, self._new.sampling
            assert new.grammar is not None
            barred: dict[int, float] = dict.fromkeys(new.suppressed, sampling.min_tokens)
            if sampling.ignore_eos:
                barred |= dict.fromkeys(new.grammar.ends, float("inf"))
            # Its output so far, which a preempted sequence already has.
            self._matcher = new.grammar.matcher(new.token_ids[new.num_prompt_tokens :], barred)
        self._matcher.accept(token_ids)
        return self._matcher


class Masks:
    """Follows the structures of sequences at fixed batch indices.

    A separate thread computes a sequence's mask as soon as its last token is known, in parallel
    with the engine's thread and the forward pass.

    Args:
        vocab_size: number of the model's logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._num_words = num_words(vocab_size)
        self._structured: dict[int, _Structured] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def add(self, index: int, new: NewSequence) -> None:
        """Add a sequence; ignores one without a structure."""
        if new.grammar is not None:
            one = self._structured[index] = _Structured(new)
            self._compute([(one, ())])

    def remove(self, index: int) -> None:
        """Remove the sequence at this index."""
        self._structured.pop(index, None)

    @property
    def follows_any(self) -> bool:
        """Whether any sequence has a structure."""
        return bool(self._structured)

    def rows(self, index: Sequence[int]) -> list[int]:
        """The rows of a step that have a structure.

        Args:
            index: [S], batch index of each row.
        """
        some = self._structured
        return [row for row, at in enumerate(index) if at in some] if some else []

    def collect(self, index: Sequence[int]) -> Allowed | None:
        """Wait for the masks of a step's rows. None if no row has a structure.

        Args:
            index: see `rows`.
        """
        rows = self.rows(index)
        if not rows:
            return None
        started = perf_counter()
        bits = np.empty((len(rows), self._num_words), np.int32)
        for place, row in enumerate(rows):
            one = self._structured[index[row]]
            bits[place] = one.masks.result()[one.place]
        failed = [rows[place] for place in np.flatnonzero(~bits.any(axis=1))]
        return Allowed(rows, bits, failed, perf_counter() - started)

    def accept(self, tokens: Iterable[tuple[int, int]]) -> None:
        """Advance structured sequences by the chosen tokens: (batch index, token).

        A token below 0 is ignored.
        """
        some = [(self._structured[at], (token,)) for at, token in tokens if token >= 0]
        if some:
            self._compute(some)

    def _compute(self, some: Sequence[tuple[_Structured, Sequence[int]]]) -> None:
        """Advance sequences by some tokens and compute their masks, in the order of the calls."""
        if self._thread is None:
            from llguidance import LLExecutor

            threads = max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))
            self._executor = LLExecutor(threads)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine-masks")
        masks = self._thread.submit(self._run, some)
        for place, (one, _) in enumerate(some):
            one.masks, one.place = masks, place

    def _run(self, some: Sequence[tuple[_Structured, Sequence[int]]]) -> Bits:
        assert self._executor is not None
        matchers = [one.moved(token_ids) for one, token_ids in some]
        bits = np.empty((len(some), self._num_words), np.int32)
        Matcher.fill(matchers, bits, self._executor)
        return bits
