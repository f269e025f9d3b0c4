from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.config import EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row
from engine.model.attention.batch import Batch, Given, PackedStep

CONFIG = EngineConfig(
    num_blocks=400, block_size=4, max_model_len=64, max_num_seqs=6, max_num_batched_tokens=64
)
SAMPLING = SamplingParams()


def new_sequence(seq: int, tokens: list[int], blocks: tuple[int, ...] = ()) -> NewSequence:
    return NewSequence(seq, tuple(tokens), len(tokens), SAMPLING, 0, (), blocks)


@dataclass
class Known:
    """A sequence as the test remembers it: plain lists, one token at a time."""

    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


def check_packed(packed: PackedStep, rows: list[Row], known: dict[int, Known]) -> None:
    """See that a packed step says of each row what is known of its sequence."""
    singles = sorted((r for r in rows if r.count == 1), key=lambda r: r.start)
    order = singles + [r for r in rows if r.count > 1]
    ids, positions, slots, ends = [], [], [], {}
    for row in order:
        sequence = known[row.seq]
        for position in range(row.start, row.start + row.count):
            ids.append(sequence.tokens[position])
            positions.append(position)
            slots.append(4 * sequence.blocks[position // 4] + position % 4)
        ends[row.seq] = len(ids) - 1
    assert packed.input_ids.tolist() == ids
    assert packed.position_ids.tolist() == positions
    assert packed.slots.tolist() == slots
    assert packed.starts.tolist() == [row.start for row in order]
    assert packed.counts.tolist() == [row.count for row in order]
    for row, table in zip(order, packed.block_tables.tolist(), strict=True):
        needed = known[row.seq].blocks[: -(-(row.start + row.count) // 4)]
        assert table[: len(needed)] == needed
    sampling = [row for row in rows if row.samples]
    assert packed.last_tokens.tolist() == [ends[row.seq] for row in sampling]
    assert packed.lengths.tolist() == [len(known[row.seq].tokens) for row in sampling]


@given(st.integers(0, 10_000))
def test_steps_of_any_sequences_are_packed_right(seed: int) -> None:
    """Random arrivals, chunks, decodes and departures against lists kept token by token."""
    rng = random.Random(seed)
    batch = Batch(CONFIG)
    known: dict[int, Known] = {}
    blocks = itertools.count()
    for step in range(12):
        for seq in [seq for seq in known if rng.random() < 0.15]:
            batch.release(seq)
            del known[seq]
        while len(known) < CONFIG.max_num_seqs and rng.random() < 0.5:
            seq = 100 * step + len(known)
            held = [next(blocks) for _ in range(rng.randint(0, 2))]
            computed = 4 * len(held)
            tokens = [rng.randrange(1000) for _ in range(computed + rng.randint(1, 20))]
            batch.add(new_sequence(seq, tokens, tuple(held)))
            known[seq] = Known(tokens, held, computed)
        rows = []
        for seq, sequence in known.items():
            gap = len(sequence.tokens) - sequence.computed
            if gap == 0 or len(sequence.tokens) >= CONFIG.max_model_len or rng.random() < 0.2:
                continue
            count = rng.randint(1, gap)
            end = sequence.computed + count
            given_blocks = [next(blocks) for _ in range(-(-end // 4) - len(sequence.blocks))]
            sequence.blocks += given_blocks
            rows.append(
                Row(seq, sequence.computed, count, tuple(given_blocks), count == gap, gap > 1)
            )
        rng.shuffle(rows)
        if not rows:
            continue

        given_now = [one[1:] for one in batch.extend(rows)]
        assert given_now == [
            (at, block, 4 * (at + 1) <= row.start + row.count)
            for row in rows
            for at, block in enumerate(known[row.seq].blocks)
            if block in row.new_blocks
        ]

        packed = batch.pack(rows)
        check_packed(packed, rows, known)
        sampling = [row for row in rows if row.samples]
        chosen = [rng.randrange(1000) for _ in sampling]
        batch.append(packed, np.array(chosen, dtype=np.int64))
        for row in rows:
            known[row.seq].computed += row.count
        for row, token in zip(sampling, chosen, strict=True):
            known[row.seq].tokens.append(token)


def test_a_released_sequence_leaves_room_for_another() -> None:
    batch = Batch(CONFIG)
    for seq in range(CONFIG.max_num_seqs):
        batch.add(new_sequence(seq, [1, 2, 3]))
    index = batch.release(4)
    assert index is not None
    assert batch.add(new_sequence(99, [7])) == index
    assert batch.extend([Row(99, 0, 1, (5,), True, True)]) == [Given(index, 0, 5, False)]
    assert batch.pack([Row(99, 0, 1, (), True, True)]).input_ids.tolist() == [7]


def test_a_row_past_its_blocks_is_refused_before_it_writes() -> None:
    batch = Batch(CONFIG)
    batch.add(new_sequence(3, list(range(9)), (1, 2)))
    with pytest.raises(
        ValueError, match="sequence 3 is to compute tokens up to 9, but has 2 blocks of 4"
    ):
        batch.pack([Row(3, 8, 1, (), True, True)])


def test_a_token_that_is_not_known_yet_is_named_by_its_index() -> None:
    batch = Batch(CONFIG)
    first, second = (batch.add(new_sequence(seq, [seq, 8, 9], (seq,))) for seq in (1, 2))
    step = batch.rows([Row(1, 2, 1, (), True, False), Row(2, 2, 1, (), True, False)])
    batch.expect(step)
    later = batch.rows([Row(2, 3, 1, (), True, False), Row(1, 3, 1, (), True, False)])
    assert later.input_ids.tolist() == [-1 - second, -1 - first]
    batch.append(step, np.array([40, 50]))
    assert batch.rows([Row(2, 3, 1, (), True, False)]).input_ids.tolist() == [50]


def test_a_token_that_comes_late_does_not_reach_who_has_the_index_now() -> None:
    batch = Batch(CONFIG)
    index = batch.add(new_sequence(1, [8, 9], (1,)))
    step = batch.rows([Row(1, 1, 1, (), True, False)])
    batch.expect(step)
    batch.release(1)
    assert batch.add(new_sequence(2, [5, 6, 7], (2,))) == index
    batch.append(step, np.array([40]))
    assert batch.rows([Row(2, 0, 3, (), True, True)]).input_ids.tolist() == [5, 6, 7]
