"""Scripts: the steps of a self-test, and what a wrong row in each of them shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.api.config import EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan

# Tokens of the short script's sequences. They are few, because a step of 8 billion parameters takes
# 0.7 s on a small host, and suffice to cut a prompt at odd places, to share steps between two
# sequences, and to cross from block to block.
_SHORT = 20
# Tokens of a prompt that is longer than any window of a small model, and crosses the chunks of
# layers that compute 64 tokens at once, as transformers' delta nets do.
_LONG = 72
# First tokens of a prompt, within which no window ends.
_FIRST = 5


class ScriptedStep(NamedTuple):
    """A step, and the situation of each of its rows."""

    plan: StepPlan
    situations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """Steps that a runner computes in sequence.

    Attributes:
        token_ids: of each sequence, all of equal length.
        steps: steps, the simplest situations first.
        max_num_seqs, max_num_batched_tokens, num_blocks, num_snapshots: what the steps need.
    """

    token_ids: tuple[tuple[int, ...], ...]
    steps: tuple[ScriptedStep, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    num_snapshots: int

    @property
    def length(self) -> int:
        return len(self.token_ids[0])

    def envelope(self, config: EngineConfig) -> EngineConfig:
        """An envelope that is just large enough for the steps."""
        return replace(
            config,
            num_blocks=self.num_blocks,
            num_host_blocks=0,
            num_snapshots=self.num_snapshots,
            max_model_len=self.length,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=max(self.max_num_batched_tokens, self.max_num_seqs),
        )


def short_script(vocab_size: int, block_size: int) -> Script:
    """Three steps of two sequences: chunks of both, twice, then a decode beside a short chunk."""
    writer = _Writer(_tokens(2, _SHORT, vocab_size), block_size, max_num_seqs=2)
    together = "of two sequences in one step"
    writer.step(together, (0, 5), (1, 3))
    writer.step(together, (1, 15), (0, 14))
    writer.step(together, (0, 1), (1, 2))
    return writer.script()


def long_script(vocab_size: int, block_size: int, *, keeps_states: bool) -> Script:
    """19 steps of nine sequences: whole and chunked prompts, decodes, all of these side by side,
    prefixes computed by others, and reused slots.

    Args:
        keeps_states: whether a prefix comes with its state.
    """
    tokens = _tokens(9, _LONG, vocab_size)
    shared = {6: (3, 2 * block_size), 7: (4, block_size)}
    for follower, (source, count) in shared.items():
        tokens[follower][:count] = tokens[source][:count]
    writer = _Writer(tokens, block_size, max_num_seqs=6, keeps_states=keeps_states)
    _alone(writer, block_size)
    _beside_others(writer, block_size)
    _taking_over(writer, shared)
    return writer.script()


def _alone(writer: _Writer, block_size: int) -> None:
    writer.step(f"in the first {_FIRST} tokens", (0, _FIRST))
    writer.step(f"in a prompt of {_LONG} tokens at once, while {_FIRST} are right", (1, _LONG))
    cut = "in a prompt that is cut in chunks, while a whole one is right"
    at = 0
    # Chunks end inside a block, a window and a chunk of the model's own.
    for end in (1, block_size + 3, block_size + 5, _LONG - 18, _LONG):
        writer.step(cut, (2, end - at))
        at = end
    decoding = "in tokens that are decoded one by one"
    writer.step(decoding, (0, 1))
    writer.step(decoding, (0, 1))
    writer.step("in a chunk after decoded tokens", (0, block_size - 2 - _FIRST))
    writer.step(decoding, (0, 1))


def _beside_others(writer: _Writer, block_size: int) -> None:
    """Rows have another order in each step, and sequences have other lengths than their indices
    suggest. If the last token of a row is not sampled, there are fewer logits than rows.
    """
    beside = "beside other sequences, while it is right alone"
    writer.step(beside, (0, 1), (3, 2 * block_size), (4, 7), saves={3: 0})
    writer.step(beside, (3, 1), (4, block_size - 7), (5, 3), saves={4: 1})
    writer.step(beside, (4, 1), (0, 1), (5, block_size + 9), silent=(5,))
    writer.step(beside, (5, 1), (0, 1), (4, 1), (3, 1))
    writer.step(beside, (3, 1), (5, 1), (0, 1), (4, 1))


def _taking_over(writer: _Writer, shared: Mapping[int, tuple[int, int]]) -> None:
    over = "in going on from a prefix of another sequence"
    for seq in (1, 0, 2):
        writer.end(seq)
    writer.start_from(6, *shared[6], snapshot=0)
    writer.step(over, (3, 1), (5, 1), (4, 1), (6, 3))
    writer.end(3)
    writer.start_from(7, *shared[7], snapshot=1)
    writer.step(over, (7, 1), (6, 1), (4, 1))
    writer.end(4)
    place = "in the place of a sequence that has ended"
    writer.step(place, (6, 1), (5, 1), (7, 1), (8, 9))
    writer.step(place, (8, 1), (7, 1), (5, 1), (6, 1))


def _tokens(number: int, length: int, vocab_size: int) -> list[list[int]]:
    """Sequences that differ from the first token on, and are spread over the vocabulary."""
    return [
        [(7919 * (number * at + seq) + 13) % vocab_size for at in range(length)]
        for seq in range(number)
    ]


class _Writer:
    """Writes steps row by row, and allocates blocks."""

    def __init__(
        self,
        token_ids: Sequence[Sequence[int]],
        block_size: int,
        *,
        max_num_seqs: int,
        keeps_states: bool = False,
    ) -> None:
        self._token_ids = tuple(tuple(row) for row in token_ids)
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._keeps_states = keeps_states
        per_sequence = -(-len(self._token_ids[0]) // block_size)
        self._num_blocks = max_num_seqs * per_sequence
        # A sequence's blocks are neither in order nor adjacent.
        self._free = [*range(0, self._num_blocks, 2), *range(1, self._num_blocks, 2)]
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._shared: set[int] = set()
        self._new: list[NewSequence] = []
        self._restores: list[tuple[int, int]] = []
        self._released: list[int] = []
        self._steps: list[ScriptedStep] = []
        self._num_snapshots = 0

    def step(
        self,
        situation: str,
        *rows: tuple[int, int],
        saves: Mapping[int, int] | None = None,
        silent: Sequence[int] = (),
    ) -> None:
        """Add a step of rows (sequence, tokens), decodes first.

        Args:
            saves: snapshots by sequence whose state is saved after its row.
            silent: sequences whose rows do not sample.
        """
        plan_rows = tuple(self._row(seq, count, seq not in silent) for seq, count in rows)
        kept = tuple((saves or {}).items()) if self._keeps_states else ()
        self._num_snapshots += len(kept)
        plan = StepPlan(
            len(self._steps) + 1,
            plan_rows,
            new=tuple(self._new),
            released=tuple(self._released),
            restores=tuple(self._restores),
            saves=kept,
        )
        self._new, self._released, self._restores = [], [], []
        self._steps.append(ScriptedStep(plan, (situation,) * len(plan_rows)))

    def start_from(self, seq: int, source: int, num_tokens: int, snapshot: int) -> None:
        """Start a sequence with the blocks of another one's prefix, and its state there."""
        blocks = self._tables[source][: num_tokens // self._block_size]
        self._shared.update(blocks)
        self._learn(seq, blocks, num_tokens)
        if self._keeps_states:
            self._restores.append((snapshot, seq))

    def end(self, seq: int) -> None:
        """Remove a sequence, and reuse its blocks."""
        self._released.append(seq)
        own = [block for block in self._tables.pop(seq) if block not in self._shared]
        self._free = own + self._free

    def script(self) -> Script:
        """The finished script."""
        return Script(
            self._token_ids,
            tuple(self._steps),
            self._max_num_seqs,
            max(step.plan.num_tokens for step in self._steps),
            self._num_blocks,
            self._num_snapshots,
        )

    def _learn(self, seq: int, blocks: list[int], num_tokens: int) -> None:
        ids = self._token_ids[seq]
        self._new.append(NewSequence(seq, ids, len(ids), SamplingParams(), 0, (), tuple(blocks)))
        self._tables[seq], self._lengths[seq] = list(blocks), num_tokens

    def _row(self, seq: int, count: int, samples: bool) -> Row:
        if seq not in self._tables:
            self._learn(seq, [], 0)
        start, table = self._lengths[seq], self._tables[seq]
        lacking = -(-(start + count) // self._block_size) - len(table)
        given = tuple(self._free.pop() for _ in range(lacking))
        table += given
        self._lengths[seq] = start + count
        return Row(seq, start, count, given, samples, count > 1)
