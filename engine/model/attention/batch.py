"""Batch: the runner's sequences, and the inputs of a step packed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from engine.api.config import EngineConfig
from engine.batch.plan import NewSequence, Row
from engine.model.attention.base import IntArray


class Given(NamedTuple):
    """A block allocated to a sequence.

    Attributes:
        batch_index: batch index of the sequence.
        place: the block's position in the sequence's table.
        is_filled: whether the step that it was allocated for fills it completely.
    """

    batch_index: int
    place: int
    block: int
    is_filled: bool


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Inputs of a step, on the host and all int64, for T tokens in R rows, S of which sample.

    Rows are in the order of `engine.model.attention.base.StepContext`; the sampling fields are in
    the plan's order.

    Attributes:
        input_ids: [T]; -1 - i is the token that the previous step samples for batch index i
            (`Batch.expect`).
        position_ids: [T].
        index: [R], batch index of each row.
        starts, counts: [R].
        last_tokens: [S], index in the packed step of each sampling row's last token.
        sampling: [S], batch index of each sampling row.
        lengths: [S], number of tokens in its sequence before the sampled one.
        generations: [S], ordinal of the row's sequence among those that have had its batch index.
    """

    input_ids: IntArray
    position_ids: IntArray
    index: IntArray
    starts: IntArray
    counts: IntArray
    last_tokens: IntArray
    sampling: IntArray
    lengths: IntArray
    generations: IntArray


@dataclass(frozen=True, slots=True)
class PackedStep(PackedRows):
    """A step with its tokens' places in the pool.

    Attributes:
        slots: [T].
        block_tables: [R, B].
    """

    slots: IntArray
    block_tables: IntArray


class Batch:
    """Token ids and block tables of up to `max_num_seqs` sequences, each at a fixed index.

    They persist from step to step, so that a step costs Python time for each row, and none for each
    token.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._block_size = config.block_size
        self._index: dict[int, int] = {}
        self._free = list(range(config.max_num_seqs - 1, -1, -1))
        max_blocks = config.blocks_for(config.max_model_len)
        self._token_ids = np.zeros((config.max_num_seqs, config.max_model_len), dtype=np.int32)
        self._block_tables = np.zeros((config.max_num_seqs, max_blocks), dtype=np.int32)
        self._num_blocks = np.zeros(config.max_num_seqs, dtype=np.int64)
        self._generations = np.zeros(config.max_num_seqs, dtype=np.int64)

    def add(self, new: NewSequence) -> int:
        """Add a sequence; its index is free again after `release`."""
        index = self._free.pop()
        self._index[new.seq] = index
        self._token_ids[index, : len(new.token_ids)] = new.token_ids
        self._block_tables[index, : len(new.block_ids)] = new.block_ids
        self._num_blocks[index] = len(new.block_ids)
        self._generations[index] += 1
        return index

    def index_of(self, seq: int) -> int:
        """The index of an added sequence."""
        return self._index[seq]

    def token_ids(self, index: int, start: int, stop: int) -> IntArray:
        """Token ids at positions [start, stop) of the sequence at an index."""
        return self._token_ids[index, start:stop].astype(np.int64)

    def release(self, seq: int) -> int | None:
        """Remove a sequence; returns its index, None if it was never added."""
        index = self._index.pop(seq, None)
        if index is not None:
            self._free.append(index)
        return index

    def extend(self, rows: Sequence[Row]) -> list[Given]:
        """Append the rows' new blocks to their tables; returns these blocks."""
        given: list[Given] = []
        for row in rows:
            if row.new_blocks:
                index = self._index[row.seq]
                held = int(self._num_blocks[index])
                total = held + len(row.new_blocks)
                self._block_tables[index, held:total] = row.new_blocks
                self._num_blocks[index] = total
                filled = (row.start + row.count) // self._block_size
                given += [
                    Given(index, place, block, place < filled)
                    for place, block in enumerate(row.new_blocks, held)
                ]
        return given

    def rows(self, rows: Sequence[Row]) -> PackedRows:
        """Pack the inputs of a step.

        Raises:
            ValueError: a row reaches past its sequence's blocks, and would write to those of
                another sequence.
        """
        index = np.array([self._index[row.seq] for row in rows], dtype=np.int64)
        starts = np.array([row.start for row in rows], dtype=np.int64)
        counts = np.array([row.count for row in rows], dtype=np.int64)
        samples = np.array([row.samples for row in rows], dtype=bool)
        lengths = starts + counts
        short = lengths > self._num_blocks[index] * self._block_size
        if short.any():
            row = rows[int(np.argmax(short))]
            raise ValueError(
                f"sequence {row.seq} is to compute tokens up to {row.start + row.count}, but has "
                f"{self._num_blocks[self._index[row.seq]]} blocks of {self._block_size}"
            )

        # Single tokens first, by length; the rest as planned.
        order = np.lexsort((np.where(counts == 1, lengths, 0), counts > 1))
        packed, packed_counts = index[order], counts[order]
        ends = np.cumsum(packed_counts)
        last_tokens = np.empty_like(ends)
        last_tokens[order] = ends - 1

        row_of_token = np.repeat(packed, packed_counts)
        shift = np.repeat(starts[order] - (ends - packed_counts), packed_counts)
        positions = np.arange(len(row_of_token)) + shift
        return PackedRows(
            input_ids=self._token_ids[row_of_token, positions].astype(np.int64),
            position_ids=positions,
            index=packed,
            starts=starts[order],
            counts=packed_counts,
            last_tokens=last_tokens[samples],
            sampling=index[samples],
            lengths=lengths[samples],
            generations=self._generations[index[samples]],
        )

    def pack(self, rows: Sequence[Row]) -> PackedStep:
        """Pack the inputs of a step, with its tokens' places in the pool.

        Raises:
            ValueError: see `rows`.
        """
        packed = self.rows(rows)
        row_of_token = np.repeat(packed.index, packed.counts)
        positions = packed.position_ids
        blocks = self._block_tables[row_of_token, positions // self._block_size].astype(np.int64)
        num_blocks = -(-int((packed.starts + packed.counts).max()) // self._block_size)
        known = {field.name: getattr(packed, field.name) for field in fields(packed)}
        return PackedStep(
            **known,
            slots=blocks * self._block_size + positions % self._block_size,
            block_tables=self._block_tables[packed.index, :num_blocks].astype(np.int64),
        )

    def expect(self, step: PackedRows) -> None:
        """Make the next step read this one's sampled tokens on the device, by batch index."""
        self._token_ids[step.sampling, step.lengths] = -1 - step.sampling

    def append(self, step: PackedRows, token_ids: IntArray) -> None:
        """Store the sampled tokens, [S], where the next step's rows read them.

        An index whose sequence was released while the step ran is skipped, because it may belong to
        another sequence by now.
        """
        current = self.current(step)
        self._token_ids[step.sampling[current], step.lengths[current]] = token_ids[current]

    def current(self, step: PackedRows) -> IntArray:
        """The sampling rows of a step whose sequence still has its index."""
        (current,) = np.nonzero(self._generations[step.sampling] == step.generations)
        return current
