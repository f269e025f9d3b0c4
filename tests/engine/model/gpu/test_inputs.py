"""A step's inputs: what was put in comes out, the rest is padding, and there is always room."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.model.attention.batch import PackedRows
from engine.model.gpu.inputs import AttentionKind, InputLayout, StepSize
from engine.triton.work import lay_out

TILES = (4, 16)
KINDS = (AttentionKind(TILES, None), AttentionKind(TILES, 40))
FIELDS = 3
BLOCK_SIZE = 16
PROGRAMS = 20
ROOM = {"programs": PROGRAMS, "fields": FIELDS, "block_size": BLOCK_SIZE}


def packed(rows: list[tuple[int, int, bool]], rng: np.random.Generator) -> PackedRows:
    """Rows of (start, count, samples), single tokens first."""
    rows = sorted(rows, key=lambda row: row[1] > 1)
    starts, counts = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    samples = np.array([row[2] for row in rows], bool)
    tokens = int(counts.sum())
    index = rng.permutation(50)[: len(rows)]
    return PackedRows(
        input_ids=rng.integers(-50, 1000, tokens),
        position_ids=rng.integers(0, 1000, tokens),
        index=index,
        starts=starts,
        counts=counts,
        last_tokens=(np.cumsum(counts) - 1)[samples],
        sampling=index[samples],
        lengths=(starts + counts)[samples],
        generations=np.zeros(samples.sum(), np.int64),
    )


def check_section(section: torch.Tensor, values: npt.NDArray[np.generic], padding: int) -> None:
    count = len(values)
    assert section[:count].tolist() == values.tolist()
    assert (section[count:] == padding).all()


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 900), st.one_of(st.just(1), st.integers(1, 70)), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    more=st.tuples(st.integers(0, 30), st.integers(0, 9)),
    num_updates=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_what_is_put_in_comes_out_and_the_rest_is_padding(
    rows: list[tuple[int, int, bool]], more: tuple[int, int], num_updates: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    step = packed(rows, rng)
    tokens, samples = len(step.input_ids), len(step.last_tokens)
    size = StepSize(tokens + more[0], samples + more[1], bool((step.counts > TILES[0]).any()))
    layout = InputLayout(size, KINDS, rows=len(rows) + more[1], **ROOM)
    sampling = rng.integers(0, 99, (samples, FIELDS)).astype(np.int32)
    updates = rng.integers(0, 99, (min(num_updates, layout.num_updates), 3)).astype(np.int32)
    words = rng.integers(-9, 9, layout.num_words + 7).astype(np.int32)
    behind = words[layout.num_words :].copy()

    layout.fill(words, step, step.index, sampling, updates)

    assert (words[layout.num_words :] == behind).all()
    inputs = layout.over(torch.from_numpy(words))
    check_section(inputs.ids, step.input_ids, 0)
    check_section(inputs.rows, np.repeat(step.index, step.counts), -1)
    check_section(inputs.positions, step.position_ids, 0)
    check_section(inputs.last_tokens, step.last_tokens, -1)
    check_section(inputs.sampling, sampling, -1)
    check_section(inputs.updates, updates, -1)
    for kind in KINDS:
        works = lay_out(
            step.starts, step.counts, tiles=TILES, window=kind.window, programs=PROGRAMS
        )
        for work, items, merges in zip(works, inputs.items[kind], inputs.merges[kind], strict=True):
            work.items[:, 0] = step.index[work.items[:, 0]]
            check_section(items, work.items, -1)
            check_section(merges, work.merges, -1)


def test_sections_begin_where_16_bytes_do() -> None:
    layout = InputLayout(StepSize(5, 3, chunks=True), KINDS, rows=5, **ROOM)
    words = torch.zeros(layout.num_words, dtype=torch.int32)
    inputs = layout.over(words)
    sections = [inputs.ids, inputs.rows, inputs.last_tokens, inputs.sampling, inputs.updates]
    sections += [one for kind in KINDS for one in (*inputs.items[kind], *inputs.merges[kind])]
    assert {section.storage_offset() % 4 for section in sections} == {0}


def test_a_step_of_decodes_has_no_list_of_large_tiles() -> None:
    layout = InputLayout(StepSize(8, 8, chunks=False), KINDS, rows=9, **ROOM)
    inputs = layout.over(torch.zeros(layout.num_words, dtype=torch.int32))
    assert [len(items) for items in inputs.items[KINDS[0]]] == [8 + PROGRAMS, 0]
    assert [len(merges) for merges in inputs.merges[KINDS[0]]] == [8, 0]


def test_a_large_prefill_has_no_more_small_tiles_than_rows() -> None:
    layout = InputLayout(StepSize(8192, 4, chunks=True), KINDS, rows=6, **ROOM)
    inputs = layout.over(torch.zeros(layout.num_words, dtype=torch.int32))
    small, large = (len(items) for items in inputs.items[KINDS[0]])
    assert small == 6 + PROGRAMS
    assert large == 8192 // 16 + 6 + PROGRAMS
