"""Block tables that stay on the device."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# One warp's accesses of single numbers. Updates are few: a block for each 16 tokens of a row.
UPDATES = 32


@triton.jit(do_not_specialize=["num_updates"])
def _update(block_tables, updates, num_updates, table_stride, UPDATES: tl.constexpr):
    """Write some blocks; the grid is [programs]."""
    update = tl.program_id(0) * UPDATES + tl.arange(0, UPDATES)
    is_update = update < num_updates
    row = tl.load(updates + update * 3, mask=is_update, other=-1)
    is_update = is_update & (row >= 0)
    place = tl.load(updates + update * 3 + 1, mask=is_update, other=0)
    block = tl.load(updates + update * 3 + 2, mask=is_update, other=0)
    tl.store(block_tables + row.to(tl.int64) * table_stride + place, block, mask=is_update)


def update(block_tables: Tensor, updates: Tensor) -> None:
    """Write blocks into their places: block_tables[row, place] = block.

    Args:
        block_tables: [R, B] int32.
        updates: [N, 3] int32 in one piece: row, place and block. Row -1 is padding. A place occurs
            at most once, because updates are written in any order.
    """
    _update[(triton.cdiv(len(updates), UPDATES),)](
        block_tables,
        updates,
        len(updates),
        block_tables.stride(0),
        UPDATES=UPDATES,
        num_warps=1,
    )
