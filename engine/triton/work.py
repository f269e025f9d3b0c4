"""WorkList: a step's attention cut into pieces of similar size, one for each program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

# Fields of an item and of a merge, in the order in which the kernels read them. An item has the
# queries at [first, first + count) of the packed step, the first of which is at `position`, and
# keys [begin, end) of `row`. `slot` is where it leaves a part of the result, -1 if it has all keys.
ITEM = ("row", "first", "count", "position", "begin", "end", "slot")
# A merge has the parts at slots [slot, slot + parts), and the same queries.
MERGE = ("slot", "parts", "first", "count")

# A shorter piece would cost more for its start and its merge than it saves.
LEAST_KEYS = 256
# Most keys that a program reads at once (`engine.triton.ways`). Pieces are whole multiples.
KEYS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class WorkList:
    """Pieces for tiles of one height.

    Attributes:
        items: [I, len(ITEM)], the longest first.
        merges: [M, len(MERGE)], one for each tile whose keys are in several items.
        num_slots: how many parts the items leave.
    """

    items: Int32Array
    merges: Int32Array
    num_slots: int


def lay_out(
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    *,
    tiles: tuple[int, int],
    window: int | None,
    programs: int,
) -> tuple[WorkList, WorkList]:
    """The work of a step in small and in large tiles, for layers with this window.

    Args:
        tiles: most tokens of a small and of a large one. The rest is as in `cut`.
    """
    fits = counts <= tiles[0]
    first, second = (
        cut(
            starts,
            counts,
            rows=chosen.nonzero()[0],
            tile=tile,
            window=window,
            programs=programs,
        )
        for tile, chosen in zip(tiles, (fits, ~fits), strict=True)
    )
    return first, second


def most_entries(
    tokens: int, *, rows: int, tiles: tuple[int, int], programs: int, chunks: bool
) -> tuple[tuple[int, int], ...]:
    """Most items and most merges of the two lists of a step.

    Args:
        tokens: of the step.
        rows: most rows of a step.
        tiles: as in `lay_out`.
        chunks: whether rows may have more tokens than a small tile.
    """
    small, large = tiles
    # A row of the first list has one tile, and one of the second has more tokens than that.
    last_ones = min(rows, tokens // (small + 1))
    counts = (min(rows, tokens), tokens // large + last_ones if chunks else 0)
    return tuple((count + programs, min(count, programs)) if count else (0, 0) for count in counts)


def cut(
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    *,
    rows: npt.NDArray[np.int64],
    tile: int,
    window: int | None,
    programs: int,
) -> WorkList:
    """Cut the attention of some rows of a step (FlashDecoding's split over the keys, balanced over
    the step as in FlashInfer, arXiv 2501.01005, section 3.3.1).

    Args:
        starts, counts: [R], for each row of the step, as in `StepContext`.
        rows: indices of the rows to cut.
        tile: most queries of an item, in tokens.
        window: how many positions each token sees, including itself; None is all.
        programs: the wanted number of items, if there are enough keys. There are at most as many
            more as there are tiles.
    """
    if not len(rows):  # most steps have no large tiles, and should not pay for this
        return WorkList(_none(ITEM), _none(MERGE), 0)
    offsets = np.cumsum(counts) - counts
    num_tiles = -(-counts[rows] // tile)
    row = np.repeat(rows, num_tiles)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
    skipped = nth * tile
    count = np.minimum(counts[row] - skipped, tile)
    first = offsets[row] + skipped
    position = starts[row] + skipped
    end = position + count
    begin = np.zeros_like(end) if window is None else np.maximum(position - window + 1, 0)

    length = end - begin
    piece = max(LEAST_KEYS, -(-int(length.sum()) // programs))
    piece = -(-piece // KEYS_AT_ONCE) * KEYS_AT_ONCE
    parts = -(-length // piece)
    is_split = parts > 1
    slots = np.cumsum(np.where(is_split, parts, 0)) - np.where(is_split, parts, 0)

    of_tile = np.repeat(np.arange(len(row)), parts)
    part = np.arange(len(of_tile)) - np.repeat(np.cumsum(parts) - parts, parts)
    item_begin = begin[of_tile] + part * piece
    item_end = np.minimum(item_begin + piece, end[of_tile])
    slot = np.where(is_split[of_tile], slots[of_tile] + part, -1)
    fields = (row[of_tile], first[of_tile], count[of_tile], position[of_tile])
    items = np.stack((*fields, item_begin, item_end, slot), axis=1).astype(np.int32)
    longest_first = np.argsort(item_begin - item_end, kind="stable")
    merges = np.stack((slots, parts, first, count), axis=1)[is_split].astype(np.int32)
    return WorkList(items[longest_first], merges, int(parts[is_split].sum()))


def _none(fields: tuple[str, ...]) -> Int32Array:
    return np.empty((0, len(fields)), np.int32)


def most_slots(programs: int) -> int:
    """Most parts that the items of a list leave.

    A tile is split if it has more keys than a program's share. There are fewer such tiles than
    programs, and each has at most one part more than its share.
    """
    return 2 * programs
