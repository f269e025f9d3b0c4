"""The layout that the sampling kernels and the host share: the words of a row, and the sizes of
buffers."""

from __future__ import annotations

# Words of a row, 32 bits each, in the order in which the kernels read them. `index` is the batch
# index, -1 for padding. `biases` is how many there are. `floor` is the logarithm of min_p.
# `uniform` and `top_p` are float64, the lower half first. The rest is as in `SamplingParams`.
FIELDS = (
    "index",
    "flags",
    "biases",
    "top_k",
    "temperature",
    "floor",
    "repetition",
    "frequency",
    "presence",
    "uniform_low",
    "uniform_high",
    "top_p_low",
    "top_p_high",
)

# Bits of `flags`: the sequence has penalties; its suppressed tokens are forbidden in this step; it
# has a structure, whose mask forbids tokens.
PENALISED = 1
SUPPRESSING = 2
STRUCTURED = 4

# Tokens that a word of a mask has a bit for, the lowest first.
MASK_WORD = 32

# A count of a token is 0 if it was never seen, 1 if it is in the prompt only, and n + 1 after n
# outputs. The sign of the 16 bits is set for a token that may be suppressed.
MOST_COUNTED = 2**15 - 1
MAY_BE_SUPPRESSED = -(2**15)

# Logits that a program reads at once: with 4 warps each thread has 16 loads under way, with 8 half
# as many.
TILE = 2048
# Most tokens among which a limit is searched in registers.
CANDIDATES = 2048
_LEAST_CHUNK = 128
_MOST_CHUNKS = 1024


def chunk_of(vocab_size: int) -> tuple[int, int]:
    """How many logits a chunk has, and how many chunks a row has room for: powers of two.

    A row's vocabulary is cut into chunks whose largest score and sum of weights are kept. With
    short chunks, few logits have to be searched: at most 50 chunks for a top_k of 50. But a program
    keeps the two numbers of every chunk in its registers.
    """
    chunk = _LEAST_CHUNK
    while vocab_size > chunk * _MOST_CHUNKS:
        chunk *= 2
    whole = max(-(-vocab_size // chunk), TILE // chunk)
    return chunk, 1 << (whole - 1).bit_length()
