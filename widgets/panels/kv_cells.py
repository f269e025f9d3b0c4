"""KvCells: maps blocks to the cells of the KV map, and sets the size of a cell."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.api.block_map import BlockMap, BlockSegment, BlockState

WIDEST = 8  # columns of a cell
SMALL_ROWS = 6
ROWS = (2, 3, 4, 6, 8, 10, 12)  # few heights, so that the panel does not grow with every block


@dataclass(frozen=True, slots=True)
class KvCells:
    """The pool in the available cells, in reading order.

    A cell never mixes blocks of two runs while there are cells for all runs. So a single used block
    is visible in a pool of any size, and the cells of a pool may have different numbers of blocks.

    Attributes:
        cells: the blocks of each cell; one with several states has `counts`.
        span: the width of each cell in columns.
        columns: cells in a line.
        largest: the most blocks of a cell.
    """

    cells: Sequence[BlockSegment]
    span: int
    columns: int
    largest: int

    @staticmethod
    def fit(blocks: BlockMap, width: int, height: int) -> KvCells:
        """Lay the pool out in so many columns and lines."""
        width, height = max(width, 1), max(height, 1)
        span = max(_widest(blocks.num_blocks, width, height), 1)
        columns = width // span
        cells = _cells(blocks, columns * height)
        return KvCells(cells, span, columns, max(cell.blocks for cell in cells))

    def at(self, block: int) -> int:
        """The index of the cell that has a block; the last one if there is no such block."""
        return max(bisect_right(self.cells, block, key=lambda cell: cell.first) - 1, 0)


def rows_wanted(blocks: BlockMap, width: int) -> int:
    """How many lines of so many columns show a pool well: a small one as large as it can be drawn,
    a large one by its used and cached blocks, with a line for free ones.
    """
    width, total = max(width, 1), blocks.num_blocks
    if total <= width * SMALL_ROWS // 2:
        return min(-(-total // max(width // WIDEST, 1)), SMALL_ROWS)
    wanted = min(-(-(total - blocks.free) // width) + 1, -(-total // width))
    return next((rows for rows in ROWS if rows >= wanted), ROWS[-1])


def _widest(blocks: int, width: int, height: int) -> int:
    """The widest cells that still give each block its own; 0 if there are fewer cells than
    blocks."""
    spans = range(min(WIDEST, width), 0, -1)
    return next((span for span in spans if width // span * height >= blocks), 0)


def _cells(blocks: BlockMap, room: int) -> list[BlockSegment]:
    """The pool in at most `room` cells."""
    segments = blocks.segments
    if len(segments) <= room:
        for most in _ladder(-(-blocks.num_blocks // room), blocks.num_blocks):
            # Even a short run takes a cell, so the cells of long ones grow.
            if sum(1 if s.counts else -(-s.blocks // most) for s in segments) <= room:
                return list(_cut(segments, most))
    for most in _ladder(-(-blocks.num_blocks // room), blocks.num_blocks):
        groups = _groups(segments, most)
        # Only a single run is longer than `most`.
        if sum(1 if len(g) > 1 or g[0].counts else -(-g[0].blocks // most) for g in groups) <= room:
            return list(_cut(map(_union, groups), most))
    raise AssertionError("one cell holds all blocks")


def _ladder(first: int, last: int) -> Iterator[int]:
    """Sizes of cells to try: `first`, then steps far enough apart that the map stays stable while
    the pool changes a little."""
    yield first
    size = 1
    while size < last:
        for step in (size, size * 3 // 2):
            if first < step < last:
                yield step
        size *= 2
    yield last


def _cut(segments: Iterable[BlockSegment], most: int) -> Iterator[BlockSegment]:
    """Runs in pieces of at most `most` blocks."""
    for segment in segments:
        if segment.counts or segment.blocks <= most:
            yield segment
            continue
        end = segment.first + segment.blocks
        for first in range(segment.first, end, most):
            yield segment._replace(first=first, blocks=min(most, end - first))


def _groups(segments: Iterable[BlockSegment], most: int) -> list[list[BlockSegment]]:
    """Adjacent runs, grouped up to `most` blocks."""
    groups: list[list[BlockSegment]] = []
    size = most
    for segment in segments:
        if size + segment.blocks <= most:
            groups[-1].append(segment)
            size += segment.blocks
        else:
            groups.append([segment])
            size = segment.blocks
    return groups


def _union(parts: Sequence[BlockSegment]) -> BlockSegment:
    """Adjacent runs as one."""
    if len(parts) == 1:
        return parts[0]
    counts = tuple([sum(part.count(state) for part in parts) for state in BlockState])
    state = next(state for state, count in zip(BlockState, counts, strict=True) if count)
    holders = dict.fromkeys(who for part in parts for who in part.holders)
    return BlockSegment(parts[0].first, sum(p.blocks for p in parts), state, tuple(holders), counts)
