"""Sampling on a GPU: scores are adjusted and summed by chunks, then each row's token is chosen.

The kernels read a row's parameters from its words in memory, so that a CUDA graph serves every
batch of its size. A row's token depends on that row alone: its sums are sums of integers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.triton import sampling_fields
from engine.triton.filters import (
    CANDIDATES,
    RULED_OUT,
    TILE,
    Row,
    candidates,
    chunk_scores,
    limit_of,
    read,
    scaled_by,
    share_of,
    size_of,
    weight_of,
)
from engine.triton.overlap import let_next_start, wait_for_previous

FIELDS = tl.constexpr(len(sampling_fields.FIELDS))
PENALISED = tl.constexpr(sampling_fields.PENALISED)
SUPPRESSING = tl.constexpr(sampling_fields.SUPPRESSING)
MOST_COUNTED = tl.constexpr(sampling_fields.MOST_COUNTED)
MASK_WORD = tl.constexpr(sampling_fields.MASK_WORD)


@triton.jit
def real(word):
    """The float32 that is in a word."""
    return tl.load(word).to(tl.float32, bitcast=True)


@triton.jit
def double(word):
    """The float64 that is in two words, the lower one first."""
    low = tl.load(word).to(tl.uint32, bitcast=True).to(tl.int64)
    high = tl.load(word + 1).to(tl.int64)
    return ((high << 32) | low).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def score(
    logits,
    scores,
    maxima,
    sums,
    rows,
    counts,
    biases,
    masks,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    MAX_BIASES: tl.constexpr,
    MASKED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Adjust TILE logits of a row: bias, penalties, suppressed tokens, mask; the grid is
    [tiles, S].

    Args:
        logits: [S, VOCAB] float32, left as they are.
        scores: [S, VOCAB] float32, written for rows that are adjusted.
        maxima: [S, CHUNKS] float32, gets each chunk's largest score, NaN if it has a NaN.
        sums: [S, CHUNKS] int64, gets the weight of each chunk, relative to its own largest score,
            for rows that draw.
        rows: [S, FIELDS] int32, see `engine.triton.sampling_fields`.
        counts: [max_num_seqs, VOCAB] int16, likewise.
        biases: [max_num_seqs, MAX_BIASES, 2] int32, tokens and the bits of their biases.
        masks: [max_num_seqs, words] int32, a bit for each token that a structure allows.
        MASKED: whether the rows have structures, all of them or none.
    """
    let_next_start(OVERLAP)
    row = tl.program_id(1).to(tl.int64)
    words = rows + row * FIELDS
    wait_for_previous(OVERLAP)
    index = tl.load(words).to(tl.int64)
    if index >= 0:
        flags = tl.load(words + 1)
        num_biases = tl.load(words + 2)
        temperature = real(words + 4)
        logits += row * VOCAB
        scores += row * VOCAB
        begin = tl.program_id(0) * TILE
        chunk = begin // CHUNK + tl.arange(0, TILE // CHUNK)
        token = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
        mask = token < VOCAB
        score = tl.load(logits + token, mask=mask, other=float("-inf"))
        if num_biases > 0:
            # Biases are added in memory, where a token is found by its address.
            tl.store(scores + token, score, mask=mask)
            tl.debug_barrier()
            nth = tl.arange(0, MAX_BIASES)
            pair = biases + (index * MAX_BIASES + nth) * 2
            biased = tl.load(pair, mask=nth < num_biases, other=-1)
            is_mine = (biased >= begin) & (biased < begin + TILE)
            bias = tl.load(pair + 1, mask=is_mine, other=0).to(tl.float32, bitcast=True)
            old = tl.load(scores + biased, mask=is_mine, other=0.0)
            tl.store(scores + biased, old + bias, mask=is_mine)
            tl.debug_barrier()
            score = tl.load(scores + token, mask=mask, other=float("-inf"))
        if flags != 0:
            count = tl.load(counts + index * VOCAB + token, mask=mask, other=0).to(tl.int32)
            if (flags & PENALISED) != 0:
                score = penalise(score, count & MOST_COUNTED, words)
            if (flags & SUPPRESSING) != 0:
                # -inf is added, not stored, because a NaN must stay one.
                score += tl.where(count < 0, float("-inf"), 0.0)
        if MASKED:
            words_of_mask = (VOCAB + MASK_WORD - 1) // MASK_WORD
            place = masks + index * words_of_mask + token // MASK_WORD
            allowed = (tl.load(place, mask=mask, other=0) >> (token % MASK_WORD)) & 1
            score += tl.where(allowed == 0, float("-inf"), 0.0)
        if (flags != 0) | (num_biases > 0):
            tl.store(scores + token, score, mask=mask)
        top = tl.max(score, 1)
        has_nan = tl.max((score != score).to(tl.int32), 1) > 0
        tl.store(maxima + row * CHUNKS + chunk, tl.where(has_nan, float("nan"), top))
        if temperature > 0:
            weights = weight_of(tl.div_rn(score - top[:, None], temperature))
            tl.store(sums + row * CHUNKS + chunk, tl.sum(weights, 1))


@triton.jit
def penalise(score, count, words):
    """Scores of tokens with these counts, after the penalties of a row."""
    # The repetition penalty is that of CTRL (arXiv 1909.05858, section 4.1), made to push down
    # whatever the logit's sign is.
    repetition = real(words + 6)
    outputs = tl.maximum(count - 1, 0).to(tl.float32)
    presence = tl.where(outputs > 0, real(words + 8), 0.0)
    lower = tl.where(score < 0, score * repetition, tl.div_rn(score, repetition))
    return tl.where(count > 0, lower - (real(words + 7) * outputs + presence), score)


@triton.jit(do_not_specialize_on_alignment=["rows", "tokens", "latest"])
def choose(
    logits,
    scores,
    maxima,
    sums,
    listed,
    found,
    rows,
    counts,
    tokens,
    latest,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Choose the token of a row after `score`; the grid is [S].

    Counts of rows with penalties grow by the token. Other arguments are as in `score`.

    Args:
        listed: [S, CHUNKS] int32 of room.
        found: [S, 2, CANDIDATES] int32 of room.
        tokens: [S] int32, gets the token; -1 where a row has a NaN, +inf, or nothing finite.
        latest: [max_num_seqs] int32, gets the token at the row's batch index, and 0 instead of -1,
            because the next step looks up its embedding.
    """
    let_next_start(OVERLAP)
    number = tl.program_id(0).to(tl.int64)
    words = rows + number * FIELDS
    wait_for_previous(OVERLAP)
    index = tl.load(words).to(tl.int64)
    if index >= 0:
        flags = tl.load(words + 1)
        is_adjusted = (flags != 0) | (tl.load(words + 2) > 0)
        maxima += number * CHUNKS
        top = tl.max(tl.load(maxima + tl.arange(0, CHUNKS)), 0)
        # If the tuple had a name, its constants would become device values.
        token = token_of(
            Row(
                logits + number * VOCAB, scores + number * VOCAB, is_adjusted, maxima, top,
                real(words + 4), listed + number * CHUNKS, found + number * (2 * CANDIDATES),
                VOCAB, CHUNK, CHUNKS,
            ),
            sums + number * CHUNKS,
            words,
        )  # fmt: skip
        tl.store(tokens + number, token)
        tl.store(latest + index, tl.maximum(token, 0))
        if ((flags & PENALISED) != 0) & (token >= 0):
            place = counts + index * VOCAB + token
            count = tl.load(place).to(tl.int32)
            seen = count & MOST_COUNTED
            more = tl.minimum(tl.maximum(seen, 1) + 1, MOST_COUNTED)
            # The sign has another meaning, and is kept.
            tl.store(place, (count - seen + more).to(tl.int16))


@triton.jit
def token_of(row, sums, words):
    """The token of a row, -1 if it has a NaN, +inf, or nothing finite.

    Args:
        sums, words: pointers of the row, as in `choose`.
    """
    chunk = tl.arange(0, row.CHUNKS)
    peaks = tl.load(row.maxima + chunk)
    is_bad = tl.max(((peaks != peaks) | (peaks == float("inf"))).to(tl.int32), 0)
    token = tl.full([], -1, tl.int32)
    if (is_bad == 0) & (row.top > float("-inf")):
        if row.temperature > 0:
            token = draw(row, sums, words)
        else:
            best = tl.min(tl.where(peaks == row.top, chunk, row.CHUNKS), 0)
            near = best * row.CHUNK + tl.arange(0, row.CHUNK)
            score = read(row, near, near < row.VOCAB)
            token = tl.min(tl.where(score == row.top, near, row.VOCAB), 0)
    return token


@triton.jit
def draw(row, sums, words):
    """Draw a token of a row among those that its filters allow."""
    top_k = tl.load(words + 3)
    floor = real(words + 5)
    uniform = double(words + 9)
    top_p = double(words + 11)
    limit = tl.full([], RULED_OUT, tl.int32)
    count = tl.full([], -1, tl.int32)
    if (top_k < row.VOCAB) | (top_p < 1.0) | (floor > float("-inf")):
        total = tl.sum(chunk_weights(row, sums), 0)
        limit, count = limit_of(row, top_k, top_p, floor, total)
        if count < 0:
            reweigh(row, limit, sums)
    if count >= 0:
        sizes, weights, _present = candidates(row, count)
        place, _past = pick(tl.where(sizes <= limit, weights, 0), uniform)
        token = tl.load(row.found + CANDIDATES + place)
    else:
        token = pick_by_chunk(row, limit, sums, uniform)
    return token


@triton.jit
def chunk_weights(row, sums):
    """The weight of each chunk, relative to the largest score of the row: [CHUNKS]."""
    scaled = chunk_scores(row)
    return share_of(tl.load(sums + tl.arange(0, row.CHUNKS)), tl.exp(scaled).to(tl.float64))


@triton.jit
def reweigh(row, limit, sums):
    """Sum the chunks' weights again, of tokens within the limit only."""
    # Barriers: all warps have read the sums before they change, and read them again only when all
    # have changed.
    tl.debug_barrier()
    for begin in range(0, row.VOCAB, TILE):
        chunk = begin // row.CHUNK + tl.arange(0, TILE // row.CHUNK)
        peak = tl.load(row.maxima + chunk)
        has_some = size_of(scaled_by(row, peak)) <= limit
        token = chunk[:, None] * row.CHUNK + tl.arange(0, row.CHUNK)[None, :]
        mask = has_some[:, None] & (token < row.VOCAB)
        score = read(row, token, mask)
        is_in = mask & (size_of(scaled_by(row, score)) <= limit)
        weights = weight_of(tl.div_rn(score - peak[:, None], row.temperature))
        tl.store(sums + chunk, tl.sum(tl.where(is_in, weights, 0), 1))
    tl.debug_barrier()


@triton.jit
def pick(weights, uniform):
    """The first place at which the running sum of the weights exceeds `uniform` times their total,
    and the remainder within that place.
    """
    running = tl.cumsum(weights, 0)
    total = tl.sum(weights, 0)
    # The target is below the total, so that rounding cannot choose past the last weight above 0.
    target = tl.minimum(share_of(total, uniform), total - 1)
    is_before = running <= target
    before = tl.sum(tl.where(is_before, weights, 0), 0)
    return tl.sum(is_before.to(tl.int32), 0), target - before


@triton.jit
def pick_by_chunk(row, limit, sums, uniform):
    """Pick a chunk by the chunks' weights, and then a token in it by the remainder of `uniform`."""
    totals = chunk_weights(row, sums)
    chunk, rest = pick(totals, uniform)
    total = tl.sum(tl.where(tl.arange(0, row.CHUNKS) == chunk, totals, 0), 0)
    token = chunk * row.CHUNK + tl.arange(0, row.CHUNK)
    score = read(row, token, token < row.VOCAB)
    is_in = size_of(scaled_by(row, score)) <= limit
    # Relative to the chunk's own largest score, an unlikely chunk's weights are exact too.
    weights = weight_of(tl.div_rn(score - tl.load(row.maxima + chunk), row.temperature))
    left = rest.to(tl.float64) / total.to(tl.float64)
    place, _past = pick(tl.where(is_in, weights, 0), left)
    return chunk * row.CHUNK + place
