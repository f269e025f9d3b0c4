"""The work of a step, computed from the model's shape, against counting one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine.api.telemetry import StepCost
from engine.batch.plan import Row
from engine.batch.shape import LayerHeads, ModelShape

SHAPES = st.builds(
    ModelShape,
    num_params=st.integers(100, 10_000),
    num_active_params=st.integers(10, 100),
    hidden_size=st.integers(1, 16),
    vocab_size=st.integers(1, 100),
    num_heads=st.integers(1, 8),
    num_kv_heads=st.integers(1, 4),
    head_dim=st.integers(1, 8),
    value_dim=st.integers(1, 8),
    windows=st.lists(st.none() | st.integers(1, 12), min_size=1, max_size=5).map(tuple),
    dtype_bytes=st.sampled_from((2, 4)),
)
ROWS = st.lists(
    st.builds(
        Row,
        seq=st.integers(1, 9),
        start=st.integers(0, 30),
        count=st.integers(1, 20),
        new_blocks=st.just(()),
        samples=st.booleans(),
        prefill=st.booleans(),
    ),
    max_size=5,
)


def count_cost(shape: ModelShape, rows: list[Row]) -> StepCost:
    """The same by looking at every position that every token attends to in every layer."""
    if not rows:
        return StepCost(0, 0)
    flops = bytes_moved = 0
    entry = shape.num_kv_heads * (shape.head_dim + shape.value_dim) * shape.dtype_bytes
    for row in rows:
        for window in shape.windows:
            read = set()
            for position in range(row.start, row.start + row.count):
                first = 0 if window is None else max(0, position - window + 1)
                attended = range(first, position + 1)
                read.update(attended)
                # A product with a key and one with a value: multiplications and additions.
                per_head = 2 * shape.head_dim + 2 * shape.value_dim
                flops += len(attended) * shape.num_heads * per_head
                bytes_moved += entry  # its own key and value are written
            bytes_moved += len(read) * entry
        flops += 2 * shape.num_active_params * row.count
        if row.samples:
            flops += 2 * shape.hidden_size * shape.vocab_size
    return StepCost(flops, bytes_moved + shape.num_params * shape.dtype_bytes)


@given(SHAPES, ROWS)
def test_cost_against_counting(shape: ModelShape, rows: list[Row]) -> None:
    assert shape.cost(rows) == count_cost(shape, rows)


def test_a_7b_decode() -> None:
    """Llama-2-7B in bf16, one token after 1,000: by hand."""
    shape = ModelShape(
        num_params=6_738_415_616,
        num_active_params=32 * (4 * 4096**2 + 3 * 4096 * 11008),
        hidden_size=4096,
        vocab_size=32_000,
        num_heads=32,
        num_kv_heads=32,
        head_dim=128,
        value_dim=128,
        windows=(None,) * 32,
        dtype_bytes=2,
    )
    assert shape.kv_bytes_per_token == 524_288
    assert shape.weight_bytes == 13_476_831_232
    cost = shape.cost([Row(1, 1000, 1, (), samples=True, prefill=False)])
    linear = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32_000)
    attention = 32 * 1001 * 4 * 4096
    assert cost.flops == linear + attention
    assert cost.bytes == 13_476_831_232 + (1001 + 1) * 524_288


def test_what_is_stored_once_counts_once() -> None:
    """GLM-4.7-Flash keeps 576 numbers a layer, whose first 512 are values. Layers that have keys
    and values of others store none, and read those.
    """
    latents = ModelShape(
        num_params=0,
        num_active_params=0,
        hidden_size=1,
        vocab_size=1,
        num_heads=20,
        num_kv_heads=1,
        head_dim=576,
        value_dim=512,
        value_in_key=True,
        windows=(None,) * 47,
        dtype_bytes=2,
    )
    assert latents.kv_bytes_per_token == 54_144
    row = Row(1, 999, 1, (), samples=False, prefill=False)
    assert latents.cost([row]).bytes == 1001 * 54_144

    heads = LayerHeads(4, 2, 16, 16), LayerHeads(8, 1, 32, 32)
    mixed = replace(
        latents,
        value_in_key=False,
        mixed=(heads[0], heads[1], heads[1], heads[0]),
        windows=(None,) * 4,
        sources=(0, 1, 1, 0),
    )
    assert mixed.storing == (0, 1)
    assert mixed.kv_bytes_per_token == 2 * (64 + 64)
    assert mixed.cost([row]).bytes == (2 * 1000 + 1) * 2 * (64 + 64)
