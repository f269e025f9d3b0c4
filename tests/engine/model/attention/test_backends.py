"""Every backend against attention by its definition, in float64.

On a GPU: `BATCHDECK_TEST_DEVICE=cuda pytest tests/engine/model/attention`.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.cache.storage import CacheShape, KVStorage
from engine.model.attention import torch_backend, triton_backend
from engine.model.attention.base import AttentionBackend, StepContext
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.attention.interface import computing_step, paged_attention
from engine.model.attention.torch_backend import TorchAttention
from engine.model.attention.triton_backend import TritonAttention
from engine.native import kernels
from engine.triton import work
from engine.triton.ways import ways_for
from tests.support.examples import example
from tests.support.native import EACH_LEVEL

DEVICE = torch.device(os.environ.get("BATCHDECK_TEST_DEVICE", "cpu"))

native = kernels() if DEVICE.type == "cpu" else None
LEVELS = EACH_LEVEL if native is not None else []


# Those that need no kernels, by name; the last is the example of CONTRIBUTING.md.
BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "torch": TorchAttention,
    "plain": example("plain_attention").PlainAttention,
}
if importlib.util.find_spec("triton"):
    BACKENDS["triton"] = TritonAttention


@contextmanager
def cut_finely() -> Iterator[None]:
    """Have short contexts cut into parts, too, and pieces in any order: the interpreter runs one
    after the other, and would not show that they depend on it.
    """

    cut = work.cut

    def shuffled(*arguments: Any, **named: Any) -> work.WorkList:
        pieces = cut(*arguments, **named)
        order = np.random.default_rng(len(pieces.items)).permutation(len(pieces.items))
        return replace(pieces, items=pieces.items[order])

    with (
        patch.object(work, "LEAST_KEYS", 1),
        patch.object(work, "KEYS_AT_ONCE", 16),
        patch.object(triton_backend, "programs_on", lambda device, kv_heads, ways: 12),
        patch.object(work, "cut", shuffled),
    ):
        yield


@pytest.fixture(params=[*BACKENDS, *LEVELS])
def backend(request: pytest.FixtureRequest) -> Iterator[AttentionBackend]:
    """Each backend; that of the kernels at every level of instructions that is here."""
    if request.param == "triton":
        with cut_finely():
            yield TritonAttention()
        return
    if request.param in BACKENDS:
        yield BACKENDS[request.param]()
        return
    assert native is not None
    before = native.level()
    native.choose_level(request.param)
    yield CpuAttention()
    native.choose_level(before)


@dataclass(frozen=True)
class Case:
    """Rows as (start, count), and the attention of one layer."""

    rows: list[tuple[int, int]]
    kv_heads: int = 2
    groups: int = 2
    head_dim: int = 16
    value_dim: int = 16
    block_size: int = 4
    scaling: float = 0.25
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    seed: int = 0


def dense(
    query: Tensor, key: Tensor, value: Tensor, start: int, case: Case, sinks: Tensor | None
) -> Tensor:
    """One row by the definition, in float64. Keys and values are of the whole context."""
    query, key, value = query.double(), key.double(), value.double()
    key = key.repeat_interleave(case.groups, dim=1)
    value = value.repeat_interleave(case.groups, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * case.scaling
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    at = torch.arange(start, start + len(query))[:, None]
    seen = torch.arange(len(key))[None]
    visible = seen <= at
    if case.window is not None:
        visible &= seen > at - case.window
    weights = scores.exp() * visible
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.double().exp()[:, None, None]
    return torch.einsum("hqk,khd->qhd", weights / total, value)


@dataclass(frozen=True)
class Packed:
    """A step of a case: what attention is given, and each row's whole context.

    Attributes:
        queries, keys, values: of the step's tokens, row by row.
        contexts: (keys, values) of each row.
    """

    rows: list[tuple[int, int]]
    queries: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]
    contexts: list[tuple[Tensor, Tensor]]
    context: StepContext


def empty_storage(case: Case, backend: AttentionBackend, dtype: torch.dtype) -> KVStorage:
    """Room for the rows of a case and 3 blocks more. What other sequences left must not matter, not
    even a NaN.
    """
    needed = sum(-(-(start + count) // case.block_size) for start, count in case.rows)
    storage = backend.storage(
        CacheShape(
            num_layers=2,
            num_blocks=needed + 3,
            block_size=case.block_size,
            num_kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            value_dim=case.value_dim,
            dtype=dtype,
            device=DEVICE,
        )
    )
    storage.keys[1].fill_(math.nan)
    storage.values[1].fill_(math.nan)
    return storage


def pack(case: Case, backend: AttentionBackend, dtype: torch.dtype) -> Packed:
    """A step of random numbers, whose rows have their blocks anywhere."""
    torch.manual_seed(case.seed)
    rows = sorted(case.rows, key=lambda row: (row[1] > 1, row[0] if row[1] == 1 else 0))
    size, heads = case.block_size, case.kv_heads * case.groups
    needed = [-(-(start + count) // size) for start, count in rows]
    storage = empty_storage(case, backend, dtype)
    free = torch.randperm(sum(needed) + 3).tolist()
    tables = np.zeros((len(rows), max(needed)), dtype=np.int64)
    queries, keys, values, slots, contexts = [], [], [], [], []
    for r, (start, count) in enumerate(rows):
        table = [free.pop() for _ in range(needed[r])]
        tables[r, : needed[r]] = table
        tables[r, needed[r] :] = -1
        storage.clear_blocks(table)
        length = start + count
        key = torch.randn(length, case.kv_heads, case.head_dim).to(dtype)
        value = torch.randn(length, case.kv_heads, case.value_dim).to(dtype)
        slot = torch.tensor([table[p // size] * size + p % size for p in range(length)])
        storage.write(1, *(x[:start].to(DEVICE) for x in (slot, key, value)))
        queries.append(torch.randn(count, heads, case.head_dim).to(dtype))
        keys.append(key[start:])
        values.append(value[start:])
        slots.append(slot[start:])
        contexts.append((key, value))
    context = StepContext(
        backend=backend,
        storage=storage,
        slots=torch.cat(slots).to(DEVICE),
        starts=np.array([start for start, _ in rows]),
        counts=np.array([count for _, count in rows]),
        block_tables=tables,
    )
    return Packed(rows, queries, keys, values, contexts, context)


def attend_and_expect(
    case: Case, backend: AttentionBackend, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The backend's result for a packed step, and the definition's."""
    packed = pack(case, backend, dtype)
    sinks = torch.randn(case.kv_heads * case.groups).to(dtype) if case.sinks else None
    module = nn.Module()
    module.layer_idx = 1
    query, key, value = (
        torch.cat(tensors).to(DEVICE).transpose(0, 1)[None]
        for tensors in (packed.queries, packed.keys, packed.values)
    )
    with computing_step(packed.context):
        output, weights = paged_attention(
            module,
            query,
            key,
            value,
            None,
            scaling=case.scaling,
            sliding_window=case.window,
            softcap=case.softcap,
            s_aux=None if sinks is None else sinks.to(DEVICE),
        )
    assert weights is None
    expected = [
        dense(query, key, value, start, case, sinks)
        for query, (key, value), (start, _) in zip(
            packed.queries, packed.contexts, packed.rows, strict=True
        )
    ]
    return output.cpu(), torch.cat(expected)[None]


def assert_right(case: Case, backend: AttentionBackend) -> None:
    output, expected = attend_and_expect(case, backend)
    torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=1e-5)


def cases(block_sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Case]:
    decode = st.tuples(st.integers(0, 70), st.just(1))
    prefill = st.tuples(st.just(0), st.integers(1, 40))
    chunk = st.tuples(st.integers(1, 60), st.integers(1, 30))
    return st.builds(
        Case,
        rows=st.lists(st.one_of(decode, decode, prefill, chunk), min_size=1, max_size=7),
        kv_heads=st.integers(1, 3),
        groups=st.sampled_from([1, 2, 4]),
        head_dim=st.sampled_from([8, 16, 20]),
        value_dim=st.sampled_from([8, 16, 32]),
        block_size=block_sizes,
        scaling=st.floats(0.05, 0.5),
        window=st.none() | st.integers(1, 50),
        softcap=st.none() | st.floats(0.5, 30),
        sinks=st.booleans(),
        seed=st.integers(0, 1000),
    )


class TestSmallTiles:
    """Bounds shrunk, so that small cases reach every branch."""

    @pytest.fixture(scope="class", autouse=True)
    def bounds(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_backend, "_TILE", 8)
            patch.setattr(torch_backend, "_FREE_PADDING_TOKENS", 8)
            patch.setattr(torch_backend, "_MAX_CPU_GROUP_TOKENS", 150)
            patch.setattr(torch_backend, "_MAX_SCORES", 600)
            patch.setattr(torch_backend, "_BAND_GROWTH", 8)
            yield

    @settings(max_examples=60)
    @given(case=cases(st.sampled_from([1, 4, 16])))
    def test_any_mix_of_rows_agrees_with_the_definition(self, case: Case) -> None:
        assert_right(case, TorchAttention())


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(st.just(16)))
def test_any_mix_of_rows_agrees_with_the_definition(case: Case, backend: AttentionBackend) -> None:
    assert_right(case, backend)


ROWS = [(511, 1), (300, 1), (17, 1), (0, 1), (509, 1), (0, 300), (130, 270)]


@pytest.mark.parametrize(
    "case",
    [
        Case(ROWS, block_size=16),
        pytest.param(Case(ROWS, block_size=16, window=100), marks=pytest.mark.long),
        Case(ROWS, block_size=16, window=100, softcap=5.0, sinks=True, value_dim=8),
        pytest.param(Case(ROWS, block_size=16, window=10_000), marks=pytest.mark.long),
    ],
)
def test_contexts_of_several_tiles_and_groups(case: Case, backend: AttentionBackend) -> None:
    assert_right(case, backend)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    "capability", [86, *(pytest.param(one, marks=pytest.mark.long) for one in (80, 90, 100, 120))]
)
def test_tiles_of_each_card_give_the_same(
    capability: int, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(
        triton_backend, "ways_on", lambda device, size, dtype: ways_for(capability, size, 2)
    )
    rows = [(300, 1), (0, 1), (95, 1), (0, 150), (70, 40)]
    case = Case(rows, 1, 2, head_dim, head_dim, block_size=16, window=90, softcap=5.0, sinks=True)
    with cut_finely():
        assert_right(case, TritonAttention())


@pytest.mark.parametrize(
    ("softcap", "sinks"), [pytest.param(None, False, marks=pytest.mark.long), (5.0, True)]
)
def test_bfloat16_stays_within_its_rounding(
    softcap: float | None, sinks: bool, backend: AttentionBackend
) -> None:
    """Off by a step of the type at most, 2**-7 of values of 1 and more."""
    case = Case(ROWS, block_size=16, softcap=softcap, sinks=sinks)
    output, expected = attend_and_expect(case, backend, torch.bfloat16)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), expected, atol=2**-7, rtol=2**-7)
