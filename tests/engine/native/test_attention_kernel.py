"""The kernels of the cache and of attention by their definitions, over random shapes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.native import kernels_or_skip

native = kernels_or_skip()

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
# `level` changes between tests, not between the examples of one.
example_settings = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@dataclass(frozen=True)
class Case:
    """Rows as (start, count), and the attention of one layer."""

    rows: tuple[tuple[int, int], ...]
    kv_heads: int = 2
    group: int = 7
    head_dim: int = 64
    value_dim: int = 64
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    value_in_key: bool = False
    dtype: torch.dtype = torch.bfloat16
    seed: int = 0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


class Layer:
    """A cache of one layer in which all that was not stored is NaN."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(case.seed)
        self.case = case
        needed = [-(-(start + count) // 16) for start, count in case.rows]
        blocks = sum(needed) + 2
        units = (
            native.key_unit(NAMES[case.dtype], case.head_dim),
            native.value_unit(case.value_dim),
        )
        self.keys, self.values = (
            torch.full((blocks, case.kv_heads, unit), math.nan, dtype=case.dtype) for unit in units
        )
        free = torch.randperm(blocks).tolist()
        self.tables = np.full((len(needed), max(needed)), -1, dtype=np.int64)
        self.tokens = []
        for row, (start, count) in enumerate(case.rows):
            table = [free.pop() for _ in range(needed[row])]
            self.tables[row, : len(table)] = table
            length = start + count
            key = torch.randn(length, case.kv_heads, case.head_dim).to(case.dtype)
            value = torch.randn(length, case.kv_heads, case.value_dim).to(case.dtype)
            if case.value_in_key:
                value = key[..., : case.value_dim]
            at = np.arange(length)
            self.store(np.array(table)[at // 16] * 16 + at % 16, key, value)
            self.tokens.append((key, value))
        counts = sum(count for _, count in case.rows)
        self.query = torch.randn(counts, case.heads, case.head_dim).to(case.dtype)
        self.sinks = torch.randn(case.heads) if case.sinks else None

    def store(self, slots: np.ndarray, key: Tensor, value: Tensor) -> None:
        values, rows = (None, None) if self.case.value_in_key else (self.values, value.flatten(1))
        native.store(self.keys, values, slots, key.flatten(1), rows)

    def attend(self, rows: list[int] | None = None) -> Tensor:
        """Of all rows, or of these alone: [tokens, heads, value_dim]."""
        case = self.case
        rows = list(range(len(case.rows))) if rows is None else rows
        ends = np.cumsum([count for _, count in case.rows])
        queries = [self.query[ends[r] - case.rows[r][1] : ends[r]] for r in rows]
        query = torch.cat(queries).flatten(1)
        output = torch.full((len(query), case.heads * case.value_dim), math.nan, dtype=case.dtype)
        native.attend(
            output,
            query,
            self.keys,
            None if case.value_in_key else self.values,
            np.array([case.rows[r][0] for r in rows]),
            np.array([case.rows[r][1] for r in rows]),
            self.tables[rows],
            case.heads,
            0.25,
            case.window,
            case.softcap,
            self.sinks,
        )
        return output.view(-1, case.heads, case.value_dim)

    def expected(self) -> tuple[Tensor, Tensor]:
        """By the definition in float64, and the weighted mean of the values' sizes, which is what
        errors of the weights are errors of."""
        case = self.case
        parts = []
        offset = 0
        for (start, count), (key, value) in zip(case.rows, self.tokens, strict=True):
            query = self.query[offset : offset + count].double()
            offset += count
            key, value = (x.double().repeat_interleave(case.group, dim=1) for x in (key, value))
            scores = torch.einsum("qhd,khd->hqk", query, key) * 0.25
            if case.softcap:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            at, seen = torch.arange(start, start + count)[:, None], torch.arange(start + count)
            visible = seen <= at
            if case.window:
                visible &= seen > at - case.window
            weights = scores.exp() * visible
            total = weights.sum(-1, keepdim=True)
            if self.sinks is not None:
                total = total + self.sinks.double().exp()[:, None, None]
            weights = weights / total
            parts.append(
                (
                    torch.einsum("hqk,khd->qhd", weights, value),
                    torch.einsum("hqk,khd->qhd", weights, value.abs()),
                )
            )
        results, sizes = zip(*parts, strict=True)
        return torch.cat(results), torch.cat(sizes)


def assert_right(case: Case) -> None:
    layer = Layer(case)
    output = layer.attend().double()
    expected, size = layer.expected()
    if case.dtype == torch.float32:
        # Scores of more numbers are rounded more often.
        allowed = 2e-6 + 1e-5 * max(1, case.head_dim / 256) * size
    else:
        # A weight is rounded by up to half a step, and taken from a power of two that is 7.5e-5
        # off, as is the sum; the result is rounded by up to half a step of its own.
        half = torch.finfo(case.dtype).eps / 2
        allowed = half * expected.abs() + (half + 2**-12) * size + 1e-5
    excess = (output - expected).abs() - allowed
    assert not output.isnan().any()
    assert excess.max() <= 0, f"off by {excess.max():.2e} more than rounding explains"


decode = st.tuples(st.integers(0, 200), st.just(1))
chunk = st.tuples(st.integers(0, 90), st.integers(1, 70))
cases = st.builds(
    Case,
    rows=st.lists(st.one_of(decode, chunk), min_size=1, max_size=4).map(tuple),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 4, 7, 8, 9, 16, 33]),
    head_dim=st.integers(12, 100) | st.sampled_from([128, 192, 256]),
    value_dim=st.integers(1, 100) | st.sampled_from([128, 256]),
    window=st.just(0) | st.integers(1, 120),
    softcap=st.just(0.0) | st.floats(0.5, 30),
    sinks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)


@example_settings
@given(case=cases)
def test_any_shape_agrees_with_the_definition(level: str, case: Case) -> None:
    assert_right(case)


LONG = ((2500, 1), (0, 300), (1100, 3), (700, 90), (15, 1), (16, 1))


@pytest.mark.parametrize("dtype", list(NAMES))
@pytest.mark.parametrize("window", [0, 100, 1500])
def test_contexts_in_shares_agree_with_the_definition(
    level: str, dtype: torch.dtype, window: int
) -> None:
    assert_right(Case(LONG, group=2, dtype=dtype, window=window, sinks=window == 1500))


@pytest.mark.parametrize("dtype", list(NAMES))
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(
    ("head_dim", "value_dim", "group"), [(576, 512, 20), (48, 33, 3), (288, 256, 40), (20, 20, 1)]
)
def test_values_in_their_keys_are_found_there(
    level: str, dtype: torch.dtype, window: int, head_dim: int, value_dim: int, group: int
) -> None:
    """As those of latents are."""
    rows = ((300, 1), (0, 40), (110, 3), (15, 1), (16, 1))
    case = Case(rows, 1, group, head_dim, value_dim, window, value_in_key=True, dtype=dtype)
    assert_right(case)
    assert_right(replace(case, kv_heads=2, rows=rows[3:], sinks=True))


def test_rising_scores_are_scaled_anew(level: str) -> None:
    """Each block's scores pass the maximum before by far more than what is let go."""
    for dtype in NAMES:
        case = Case(((600, 1),), kv_heads=1, group=1, dtype=dtype)
        layer = Layer(case)
        key, value = layer.tokens[0]
        layer.query = torch.ones_like(layer.query)
        # Of few bits, so that scores are exact and nothing but the scaling can be off.
        steps = torch.linspace(-30, 30, 601).bfloat16().to(dtype)
        key = steps[:, None, None].expand_as(key).contiguous()
        at = np.arange(601)
        layer.store(layer.tables[0, at // 16] * 16 + at % 16, key, value)
        layer.tokens[0] = (key, value)
        scores = 0.25 * 64 * key[:, 0, 0].double()
        weights = (scores - scores.max()).exp()
        expected = (weights[:, None] * value[:, 0].double()).sum(0) / weights.sum()
        result = layer.attend()[0, 0].double()
        tolerance = 1e-5 if dtype == torch.float32 else 2**-7
        torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", list(NAMES))
def test_a_row_does_not_depend_on_its_neighbours_or_threads(level: str, dtype: torch.dtype) -> None:
    layer = Layer(Case(LONG, group=2, dtype=dtype))
    threads = native.threads()
    try:
        native.set_threads(1)
        together = layer.attend()
        native.set_threads(3)
        assert torch.equal(layer.attend(), together)
    finally:
        native.set_threads(threads)
    offset = 0
    for row, (_, count) in enumerate(LONG):
        assert torch.equal(layer.attend([row]), together[offset : offset + count])
        offset += count


@pytest.mark.parametrize("dtype", list(NAMES))
def test_a_prompt_in_chunks_gives_the_same_numbers(level: str, dtype: torch.dtype) -> None:
    whole = Layer(Case(((0, 250),), dtype=dtype, window=90))
    expected = whole.attend()
    for first, last in ((0, 1), (1, 100), (100, 107), (107, 250)):
        part = Layer(replace(whole.case, rows=((first, last - first),)))
        part.keys, part.values, part.tables = whole.keys, whole.values, whole.tables
        part.query = whole.query[first:last]
        assert torch.equal(part.attend(), expected[first:last])


@pytest.mark.parametrize("dtype", list(NAMES))
def test_a_nan_of_a_row_itself_is_not_hidden(level: str, dtype: torch.dtype) -> None:
    layer = Layer(Case(((40, 1), (30, 1)), dtype=dtype))
    layer.query[1, 3] = math.nan
    output = layer.attend()
    assert output[1, 3].isnan().all()
    output[1, 3] = 0
    assert not output.isnan().any()


def keys_of(layer: Tensor, case: Case, depth: int) -> Tensor:
    """[blocks, 16, kv_heads, depth] from the units that kernels.hpp describes."""
    pair = 2 if case.dtype == torch.bfloat16 else 1
    units = layer.view(*layer.shape[:2], depth // pair, 16, pair)
    return units.permute(0, 3, 1, 2, 4).flatten(3)


def values_of(layer: Tensor, case: Case) -> Tensor:
    """[blocks, 16, kv_heads, value_dim], likewise."""
    pair = 2 if case.dtype == torch.bfloat16 else 1
    units = layer.view(*layer.shape[:2], 16 // pair, case.value_dim, pair)
    return units.permute(0, 2, 4, 1, 3).flatten(1, 2)


@example_settings
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    head_dim=st.integers(1, 70),
    value_dim=st.integers(1, 70),
    kv_heads=st.integers(1, 3),
    slots=st.lists(st.integers(0, 79), min_size=1, max_size=60, unique=True),
)
def test_stored_tokens_lie_in_their_slots_and_nowhere_else(
    level: str, dtype: torch.dtype, head_dim: int, value_dim: int, kv_heads: int, slots: list[int]
) -> None:
    case = Case(((79, 1),), kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim, dtype=dtype)
    key_unit = native.key_unit(NAMES[dtype], head_dim)
    keys = torch.full((5, kv_heads, key_unit), 7.0, dtype=dtype)
    values = torch.full((5, kv_heads, native.value_unit(value_dim)), 7.0, dtype=dtype)
    # Rows of wider matrices.
    key = torch.randn(len(slots), kv_heads * head_dim + 5).to(dtype)[:, 2:-3]
    value = torch.randn(len(slots), kv_heads * value_dim + 3).to(dtype)[:, :-3]
    native.store(keys, values, np.array(slots), key, value)

    depth = key_unit // 16
    expected = torch.full((80, kv_heads, depth), 7.0, dtype=dtype)
    expected[slots] = 0
    expected[slots, :, :head_dim] = key.reshape(-1, kv_heads, head_dim)
    assert torch.equal(keys_of(keys, case, depth).flatten(0, 1), expected)
    expected = torch.full((80, kv_heads, value_dim), 7.0, dtype=dtype)
    expected[slots] = value.reshape(-1, kv_heads, value_dim)
    assert torch.equal(values_of(values, case).flatten(0, 1), expected)


def test_tokens_of_one_pair_may_be_stored_by_different_threads(level: str) -> None:
    case = Case(((0, 4000),), dtype=torch.bfloat16)
    threads = native.threads()
    try:
        native.set_threads(4)
        layer = Layer(case)
    finally:
        native.set_threads(threads)
    key, value = layer.tokens[0]
    table = torch.from_numpy(layer.tables[0])
    assert torch.equal(keys_of(layer.keys, case, 64)[table].flatten(0, 1)[:4000], key)
    assert torch.equal(values_of(layer.values, case)[table].flatten(0, 1)[:4000], value)


class TestPlan:
    rows = st.lists(
        st.tuples(st.integers(0, 9000), st.one_of(st.just(1), st.integers(1, 1500))),
        min_size=1,
        max_size=6,
    )

    @settings(max_examples=60, deadline=None)
    @given(
        rows=rows,
        kv_heads=st.integers(1, 3),
        group=st.sampled_from([1, 2, 7, 71, 200]),
        value_dim=st.sampled_from([16, 64, 256]),
        window=st.just(0) | st.integers(1, 5000),
        threads=st.integers(1, 9),
    )
    def test_every_query_and_block_is_covered_once(
        self,
        rows: list[tuple[int, int]],
        kv_heads: int,
        group: int,
        value_dim: int,
        window: int,
        threads: int,
    ) -> None:
        starts, counts = (np.array(column) for column in zip(*rows, strict=True))
        heads = kv_heads * group
        items, merges, size, pieces = native.plan_attention(
            starts, counts, heads, kv_heads, value_dim, window, threads
        )
        assert pieces == sorted(set(pieces))
        assert (pieces[0], pieces[-1]) == (0, len(items))
        last_block = int((starts + counts).max() - 1) // 16 + 1
        covered = [np.zeros((kv_heads, count, last_block), dtype=np.int64) for _, count in rows]
        for row, kv_head, query, queries, begin, end, _ in items:
            assert queries > 0
            assert begin < end
            covered[row][kv_head, query : query + queries, begin:end] += 1
        for row, (start, count) in enumerate(rows):
            at = start + np.arange(count)
            low = np.maximum(at - window + 1, 0) // 16 if window else np.zeros_like(at)
            block = np.arange(last_block)
            needed = (block >= low[:, None]) & (block <= at[:, None] // 16)
            assert (covered[row][:, needed] == 1).all()
            assert (covered[row] <= 1).all()
            assert not covered[row][:, :, (start + count - 1) // 16 + 1 :].any()
        # Each part is written by one item and read by one merge, that of the same queries; they
        # lie side by side, and are no more than was said.
        made = {item[6]: item[:4] for item in items if item[6] >= 0}
        read = [
            (first + p * queries * group * (2 + value_dim), (row, kv_head, query, queries))
            for row, kv_head, query, queries, first, parts in merges
            for p in range(parts)
        ]
        assert dict(read) == made
        assert len(read) == len(made)
        ends = [at + made[at][3] * group * (2 + value_dim) for at in sorted(made)]
        assert [0, *ends] == [*sorted(made), size]
        longest, tokens = int((starts + counts).max()), int(counts.sum())
        assert 4 * size + 56 * len(items) + 8 * len(pieces) <= native.most_plan_bytes(
            len(rows), tokens, longest, heads, kv_heads, value_dim
        )

    def test_a_row_is_cut_the_same_way_among_any_others(self) -> None:
        rows = [(5000, 1), (0, 700), (3000, 9), (12, 1)]

        def cut(chosen: list[tuple[int, int]]) -> set[tuple[int, ...]]:
            starts, counts = (np.array(column) for column in zip(*chosen, strict=True))
            items = native.plan_attention(starts, counts, 14, 2, 64, 0)[0]
            own = chosen.index(rows[0])
            return {item[1:6] for item in items if item[0] == own}

        assert cut(rows) == cut(rows[:1]) == cut(rows[::-1])
        assert len(cut(rows)) > 2

    def test_many_that_share_a_long_context_do_not_take_gigabytes(self) -> None:
        rows, queries, heads, kv_heads, value_dim = 256, 8, 32, 8, 128
        starts, counts = np.full(rows, 131_072 - queries), np.full(rows, queries)
        items, _, size, _ = native.plan_attention(starts, counts, heads, kv_heads, value_dim)
        assert len(items) > rows * kv_heads  # they are split all the same
        taken = 4 * size + 56 * len(items)
        most = native.most_plan_bytes(rows, rows * queries, 131_072, heads, kv_heads, value_dim)
        assert taken <= most < 512 << 20

    def test_small_items_make_pieces_together_and_no_more_than_two_large_ones(self) -> None:
        def pieces(tokens: int, threads: int) -> list[int]:
            starts, counts = np.full(32, tokens - 1), np.ones(32, dtype=np.int64)
            items, _, _, pieces = native.plan_attention(starts, counts, 14, 2, 64, threads=threads)
            assert pieces[-1] == len(items)
            return [to - at for at, to in itertools.pairwise(pieces)]

        assert pieces(161, 2) == [10] * 6 + [4]
        assert pieces(161, 16) == [1] * 64
        assert set(pieces(4096, 2)) == {2}

    def test_the_most_expensive_items_come_first(self) -> None:
        items = native.plan_attention(np.array([40, 0, 9000]), np.array([1, 900, 1]), 8, 2, 64, 0)[
            0
        ]
        costs = [queries * (end - begin) for _, _, _, queries, begin, end, _ in items]
        assert costs == sorted(costs, reverse=True)


class TestRefusals:
    def attend(self, **changes: object) -> None:
        arguments: dict[str, object] = {
            "out": torch.empty(1, 64),
            "query": torch.zeros(1, 64),
            "keys": torch.zeros(3, 2, 16 * 16),
            "values": torch.zeros(3, 2, 16 * 16),
            "starts": np.array([20]),
            "counts": np.array([1]),
            "block_tables": np.array([[0, 2]]),
            "heads": 4,
            "scaling": 0.25,
        }
        native.attend(**(arguments | changes))

    def test_nothing_is_wrong_without_changes(self) -> None:
        self.attend()

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"query": torch.zeros(2, 64)}, "query has 2 rows, not 1"),
            ({"query": torch.zeros(1, 64).bfloat16()}, "query is bfloat16, not float32"),
            ({"query": torch.zeros(1, 32)}, "keys has 256 numbers a unit, not 128"),
            ({"out": torch.empty(1, 32)}, "values has 256 numbers a unit, not 128"),
            ({"heads": 3}, "query has 64 columns"),
            ({"values": torch.zeros(3, 1, 256)}, "values has 1 heads, not 2"),
            ({"keys": torch.zeros(2, 3, 256).transpose(0, 1)}, "keys is not contiguous"),
            ({"block_tables": np.array([[0, 3]])}, "names block 3"),
            ({"block_tables": np.array([[0, -1]])}, "names block -1"),
            ({"block_tables": np.array([[0]])}, "too short"),
            ({"starts": np.array([-1])}, "starts has -1"),
            ({"counts": np.array([0])}, "counts has 0"),
            # Sums of these would be small numbers again.
            ({"starts": np.array([2**63 - 1])}, "starts has 9223372036854775807"),
            (
                {
                    "starts": np.zeros(3, np.int64),
                    "counts": np.array([2**63 - 1, 2**63 - 1, 3]),
                    "block_tables": np.zeros((3, 2), np.int64),
                },
                "counts has 9223372036854775807",
            ),
            ({"keys": torch.zeros(1, 0, 256), "values": torch.zeros(1, 0, 256)}, "kv_heads is 0"),
            ({"out": torch.empty(1, 64).expand(2, -1)}, "out has rows that lie on each other"),
            ({"scaling": 0.0}, "scaling"),
            ({"window": -1}, "window"),
            ({"softcap": -1.0}, "softcap"),
            ({"sinks": torch.zeros(3)}, "sinks has 3 numbers, not 4"),
        ],
    )
    def test_what_does_not_fit_is_named(self, changes: dict[str, object], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            self.attend(**changes)

    @pytest.mark.parametrize("slot", [48, -1, 2**63 - 1])
    def test_a_slot_outside_the_cache_is_named(self, slot: int) -> None:
        keys = values = torch.zeros(3, 2, 256)
        with pytest.raises(ValueError, match=f"slots names slot {slot},"):
            native.store(keys, values, np.array([slot]), torch.zeros(1, 32), torch.zeros(1, 32))

    def test_a_single_head_has_any_stride(self) -> None:
        """The stride of a dimension of one says nothing of the layout."""
        keys, values = (
            np.lib.stride_tricks.as_strided(
                np.zeros((3, 256), np.float32), (3, 1, 256), (1024, 4, 4)
            )
            for _ in range(2)
        )
        native.store(keys, values, np.array([17]), torch.ones(1, 16), torch.ones(1, 16))
        assert keys.sum() == values.sum() == 16
