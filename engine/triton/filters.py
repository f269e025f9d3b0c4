"""The search for the least score that top_k, top_p and min_p leave to a row.

Scores are taken relative to the largest one and divided by the temperature, so that none is above
0. Their order is then the reverse order of the bits of their absolute values, here called sizes. A
filter is a limit: the least size up to which there are so many tokens (top_k), or up to which they
weigh so much (top_p; Holtzman et al., arXiv 1904.09751, section 3.1). It is found bit by bit, and
nothing is sorted. Weights are integers, so that sums are exact in whatever order they are added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from engine.triton import sampling_fields

CANDIDATES = tl.constexpr(sampling_fields.CANDIDATES)
TILE = tl.constexpr(sampling_fields.TILE)
# The integer that stands for a weight of 1. The sum of 2^20 of them fits into 64 bits.
UNIT = tl.constexpr(2.0**42)
# The size of -inf, those of 2^-10 and 2^8, and what a factor of 2 adds.
RULED_OUT = tl.constexpr(0x7F800000)
NEAR = tl.constexpr(0x3A800000)
FAR = tl.constexpr(0x43800000)
OCTAVE = tl.constexpr(0x00800000)
# Greater than any sum of weights.
UNREACHED = tl.constexpr(2**63 - 1)


class Row(NamedTuple):
    """The data of a program's row. Pointers are those of the row.

    Attributes:
        logits: those of the model.
        scores: read in their place if the row `is_adjusted`.
        maxima: the largest score of each chunk.
        top: the largest score of all.
        listed: [CHUNKS] int32 of room.
        found: [2, CANDIDATES] int32 of room.
        VOCAB, CHUNK, CHUNKS: constants, see `engine.triton.sampling_fields.chunk_of`.
    """

    logits: Any
    scores: Any
    is_adjusted: Any
    maxima: Any
    top: Any
    temperature: Any
    listed: Any
    found: Any
    VOCAB: Any
    CHUNK: Any
    CHUNKS: Any


@triton.jit
def size_of(scaled):
    """The bits of the absolute values of numbers that are at most 0."""
    return scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def weight_of(scaled):
    """The weights of numbers that are at most 0, in units. A NaN weighs nothing."""
    return tl.where(scaled <= 0, tl.exp(scaled) * UNIT, 0.0).to(tl.int64)


@triton.jit
def share_of(total, part):
    """A part, from 0 to 1, of a sum of weights."""
    return (total.to(tl.float64) * part).to(tl.int64)


@triton.jit
def read(row, token, mask):
    """The scores of some tokens, -inf beside the mask."""
    if row.is_adjusted:
        found = tl.load(row.scores + token, mask=mask, other=float("-inf"))
    else:
        found = tl.load(row.logits + token, mask=mask, other=float("-inf"))
    return found


@triton.jit
def scaled_by(row, scores):
    """Scores relative to the row's largest one, over the temperature."""
    return tl.div_rn(scores - row.top, row.temperature)


@triton.jit
def chunk_scores(row):
    """The chunks' largest scores, relative to the row's, over the temperature: [CHUNKS]."""
    return scaled_by(row, tl.load(row.maxima + tl.arange(0, row.CHUNKS)))


@triton.jit
def least(sizes, amounts, wanted):
    """The least limit within which amounts add up to `wanted`; 2^31 - 1 if they never do."""
    limit = 0
    for bit in range(31):
        step = 1 << (30 - bit)
        reached = tl.sum(tl.where(sizes < limit + step, amounts, 0), 0)
        limit = tl.where(reached < wanted, limit + step, limit)
    return limit


@triton.jit
def least_of_either(sizes, weights, count, wanted):
    """The least limit within which there are so many sizes, or within which they weigh so much."""
    limit = 0
    for bit in range(31):
        step = 1 << (30 - bit)
        is_in = sizes < limit + step
        number = tl.sum(is_in.to(tl.int32), 0)
        mass = tl.sum(tl.where(is_in, weights, 0), 0)
        limit = tl.where((number < count) & (mass < wanted), limit + step, limit)
    return limit


@triton.jit
def enlist(row, limit):
    """List the chunks whose largest score is within the limit, in order; returns how many."""
    sizes = size_of(chunk_scores(row))
    is_in = (sizes <= limit).to(tl.int32)
    # A barrier on either side: all warps must have read the previous list, and must see this one.
    tl.debug_barrier()
    tl.store(row.listed + tl.cumsum(is_in, 0) - 1, tl.arange(0, row.CHUNKS), mask=is_in > 0)
    tl.debug_barrier()
    return tl.sum(is_in, 0)


@triton.jit
def sweep(row, low, high, KEEPS: tl.constexpr):
    """Find the tokens whose sizes are in (low, high], in the order of the vocabulary. With KEEPS,
    `found` gets their sizes and ids, as many as fit.

    Returns:
        their number, and their weight.
    """
    num_listed = enlist(row, high)
    slot = tl.arange(0, TILE // row.CHUNK)
    count = tl.zeros([], tl.int32)
    mass = tl.zeros([], tl.int64)
    for first in range(0, num_listed, TILE // row.CHUNK):
        is_listed = first + slot < num_listed
        chunk = tl.load(row.listed + first + slot, mask=is_listed, other=0)
        token = chunk[:, None] * row.CHUNK + tl.arange(0, row.CHUNK)[None, :]
        mask = is_listed[:, None] & (token < row.VOCAB)
        scaled = scaled_by(row, read(row, token, mask))
        size = size_of(scaled)
        is_in = mask & (size > low) & (size <= high)
        counts = tl.sum(is_in.to(tl.int32), 1)
        if KEEPS:
            nth = tl.cumsum(is_in.to(tl.int32), 1) - 1
            place = (count + tl.cumsum(counts, 0) - counts)[:, None] + nth
            has_room = is_in & (place < CANDIDATES)
            tl.store(row.found + place, size, mask=has_room)
            tl.store(row.found + CANDIDATES + place, token, mask=has_room)
        count += tl.sum(counts, 0)
        mass += tl.sum(tl.sum(tl.where(is_in, weight_of(scaled), 0), 1), 0)
    if KEEPS:
        tl.debug_barrier()
    return count, mass


@triton.jit
def candidates(row, count):
    """Sizes and weights of the tokens that a sweep has kept, and 1 for each of them, else 0."""
    at = tl.arange(0, CANDIDATES)
    sizes = tl.load(row.found + at, mask=at < count, other=RULED_OUT)
    weights = weight_of(-sizes.to(tl.float32, bitcast=True))
    return sizes, weights, (at < count).to(tl.int32)


@triton.jit
def narrow(row, first, by_mass, wanted):
    """The least limit within which all tokens of the row add up to `wanted`.

    Sweeps narrow the range of sizes in which it lies, until the tokens in the range fit into the
    registers.

    Args:
        first: the limit to try first.
        by_mass: whether weights are added up; else tokens are counted.
        wanted: int64.
    """
    # `between` tokens are in (low, high]. Those within low add up to `below`.
    low = tl.full([], -1, tl.int32)
    high = tl.full([], RULED_OUT, tl.int32)
    below = tl.zeros([], tl.int64)
    between = tl.full([], row.VOCAB, tl.int32)
    middle = tl.minimum(first, RULED_OUT - 1)
    while (between > CANDIDATES) & (high - low > 1):
        count, mass = sweep(row, low, middle, False)
        reached = below + tl.where(by_mass, mass, count.to(tl.int64))
        is_enough = reached >= wanted
        between = tl.where(is_enough, count, between - count)
        below = tl.where(is_enough, below, reached)
        low = tl.where(is_enough, low, middle)
        high = tl.where(is_enough, middle, high)
        # The distance is doubled until it suffices. Then the range is halved repeatedly.
        doubled = tl.maximum(low, NEAR) + OCTAVE
        doubled = tl.where(doubled > FAR, RULED_OUT - 1, doubled)
        middle = tl.where(high == RULED_OUT, doubled, low + (high - low) // 2)
    limit = high
    if between <= CANDIDATES:
        count, mass = sweep(row, low, high, True)
        sizes, weights, present = candidates(row, count)
        amounts = tl.where(by_mass, weights, present.to(tl.int64))
        limit = tl.minimum(least(sizes, amounts, wanted - below), high)
    return limit


@triton.jit
def limit_of(row, top_k, top_p, floor, total):
    """The size up to which top_k, top_p and min_p, in this order, allow tokens.

    The j-th largest of the chunks' largest scores is at most the j-th largest score. So only chunks
    that reach it are read, and only scores that reach it are kept as candidates.

    Args:
        floor: the logarithm of min_p.
        total: the weight of all tokens.

    Returns:
        the limit, and how many candidates are in `found` if all tokens within the limit are among
        them; else -1.
    """
    by_k = top_k < row.VOCAB
    by_p = top_p < 1.0
    allowed = size_of(floor)
    wanted = tl.maximum(share_of(total, top_p), 1)
    limit = allowed
    if by_k | by_p:
        # Some hundreds of tokens reach the level that half of the chunks reach.
        half = tl.cdiv(row.VOCAB, row.CHUNK * 2)
        chunks = tl.minimum(tl.where(by_k, top_k, half), tl.cdiv(row.VOCAB, row.CHUNK))
        scaled = chunk_scores(row)
        goal = tl.where(by_k, UNREACHED, wanted)
        limit = least_of_either(size_of(scaled), weight_of(scaled), chunks, goal)
    # The result of top_p depends on all tokens that top_k leaves. Otherwise min_p may come before
    # it.
    is_cut = (allowed <= limit) & ((by_k & by_p) == 0)
    limit = tl.where(is_cut, allowed, limit)
    count, mass = sweep(row, -1, limit, True)
    is_enough = tl.where(by_k, count >= top_k, mass >= wanted)
    has_all = (count <= CANDIDATES) & (is_cut | is_enough)
    if has_all:
        sizes, weights, present = candidates(row, count)
        if by_k:
            limit = tl.minimum(limit, least(sizes, present, top_k))
        if by_p:
            kept = tl.sum(tl.where(sizes <= limit, weights, 0), 0)
            wanted = tl.where(by_k, tl.maximum(share_of(kept, top_p), 1), wanted)
            limit = tl.minimum(limit, least(sizes, weights, wanted))
    else:
        first = limit
        limit = tl.full([], RULED_OUT, tl.int32)
        for nth in range(2):
            by_mass = nth == 1
            if tl.where(by_mass, by_p, by_k):
                goal = tl.where(by_mass, wanted, top_k.to(tl.int64))
                if by_mass & by_k:
                    _kept_count, kept = sweep(row, -1, limit, False)
                    goal = tl.maximum(share_of(kept, top_p), 1)
                narrowed = narrow(row, first, by_mass, goal)
                limit = tl.minimum(limit, narrowed)
    return tl.minimum(limit, allowed), tl.where(has_all, count, -1)
