"""Rows of plain tables and of packed weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from tests.support.matrices import DTYPES, Matrix
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")


def packed(table: Tensor) -> Tensor:
    """The layout of packed weights, as kernels.hpp has it."""
    n, k = table.shape
    filled = pad(table, (0, -k % 32, 0, -n % 32))
    if table.dtype == torch.float32:
        return filled.view(-(-n // 32), 32, -1).transpose(1, 2).reshape(-1)
    tiles = filled.view(-(-n // 32), 2, 16, -(-k // 32), 16, 2)
    return tiles.permute(0, 3, 1, 4, 2, 5).reshape(-1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 40),
    width=st.integers(1, 150),
    vocab_size=st.integers(1, 150),
    gap=st.integers(0, 20),
    is_packed=st.booleans(),
)
def test_gives_the_rows(
    dtype: torch.dtype, rows: int, width: int, vocab_size: int, gap: int, is_packed: bool
) -> None:
    table = Matrix(vocab_size, width, dtype, 0, 1).data
    ids = torch.randint(vocab_size, (rows,), generator=torch.Generator().manual_seed(2))
    out = Matrix(rows, width, dtype, gap, 3)
    native.embed(out.data, ids, packed(table) if is_packed else table, vocab_size, is_packed)
    assert torch.equal(out.data, table[ids])
    assert out.keeps_rest()


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gives_the_rows_in_many_pieces(dtype: torch.dtype, is_packed: bool) -> None:
    table = Matrix(1000, 896, dtype, 0, 1).data
    ids = torch.randint(1000, (301,), generator=torch.Generator().manual_seed(2))
    out = Matrix(301, 896, dtype, 3, 3)
    before = native.threads()
    native.set_threads(3)
    try:
        native.embed(out.data, ids, packed(table) if is_packed else table, 1000, is_packed)
    finally:
        native.set_threads(before)
    assert torch.equal(out.data, table[ids])
    assert out.keeps_rest()


def test_refuses_by_name() -> None:
    table = torch.zeros(5, 12)
    out = torch.zeros(3, 12)
    ids = torch.arange(3)

    def refusal(*args: object) -> str:
        with pytest.raises(ValueError, match=r"\w+ (is|has|must)") as caught:
            native.embed(*args)
        return str(caught.value)

    assert refusal(out, ids + 3, table, 5, False) == "ids has 5 at 2, which is not in [0, 5)"
    assert refusal(out, ids - 1, table, 5, False).startswith("ids has -1 at 0")
    assert refusal(out, ids[:2], table, 5, False).startswith("ids ")
    assert refusal(out, ids.int(), table, 5, False).startswith("ids ")
    assert refusal(out, ids, table, 6, False).startswith("table ")
    assert refusal(out, ids, table, 0, False).startswith("vocab_size ")
    assert refusal(out, ids, table.bfloat16(), 5, False).startswith("table ")
    assert refusal(out, ids, torch.zeros(5, 13)[:, :12], 5, False).startswith("table ")
    assert refusal(out, ids, table, 5, True).startswith("table ")
    assert refusal(out, ids, packed(table)[:-1], 5, True).startswith("table ")
    assert refusal(out[:1].expand(3, -1), ids, table, 5, False).startswith("out ")
    # Padded rows times padded columns are as many as the table has, as an integer of 64 bits.
    assert refusal(out, ids, packed(table), 2**59 + 32, True).startswith("vocab_size is ")
