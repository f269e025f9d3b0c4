"""Pools of KV blocks as plain data, the same at every run."""

from __future__ import annotations

import random

from engine.api.block_map import BlockMap, BlockSegment, BlockState, PinView, Sharing

SHARING = (Sharing((4, 7, 9), 12), Sharing((1, 8), 3))
PINS = (PinView("system", tokens=90, blocks=5, computed=5),)


def block_map(num_blocks: int = 2048) -> BlockMap:
    """A pool that 20 chats share."""
    rng = random.Random(0)
    runs: list[tuple[str, tuple[int, ...], int]] = []
    left = num_blocks
    while left:
        state = rng.choices("urscpf", (50, 10, 10, 12, 2, 16))[0]
        blocks = min(rng.randint(2, 40), left)
        who = rng.randint(1, 20) if state in "urs" else 0
        holders = {"u": (who,), "r": (who,), "s": (who, who + 1)}.get(state, ())
        runs.append((state, holders, blocks))
        left -= blocks
    return pool_of(*runs)


def pool_of(*runs: tuple[str, tuple[int, ...], int]) -> BlockMap:
    """A pool of these runs: state, holders, number of blocks. A segment of several states has a
    letter for each, the busiest first, and about as many blocks of each."""
    segments, first = [], 0
    sums = dict.fromkeys(BlockState, 0)
    for letters, holders, blocks in runs:
        counts = dict.fromkeys(BlockState, 0)
        for place, letter in enumerate(letters):
            counts[BlockState(letter)] = (blocks + len(letters) - 1 - place) // len(letters)
        several = tuple(counts.values()) if len(letters) > 1 else ()
        segments.append(BlockSegment(first, blocks, BlockState(letters[0]), holders, several))
        for state, count in counts.items():
            sums[state] += count
        first += blocks
    cached = sums[BlockState.CACHED] + sums[BlockState.PINNED]
    return BlockMap(
        num_blocks=first,
        segments=tuple(segments),
        free=sums[BlockState.FREE],
        cached=cached,
        used=first - sums[BlockState.FREE] - cached,
        shared=sums[BlockState.SHARED],
        reserved=sums[BlockState.RESERVED],
        pinned=sums[BlockState.PINNED],
    )
