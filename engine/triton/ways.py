"""Ways: how attention's programs cut their work, by card, head and type.

`python -m benchmarks.gpu.tiles` measures the candidates on a GPU and prints new lines for the
table. Until it has run, the lines are chosen by what the kernels compile to
(`tests/engine/triton`): no registers spill, a program's shared memory fits, and copies are two
turns ahead of the products, except where a second program on the multiprocessor is worth more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Bytes of shared memory that one program can have, by compute capability (CUDA Programming Guide,
# "Technical Specifications per Compute Capability").
SHARED_MEMORY = {
    80: 166_912,
    86: 101_376,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}
# The capability whose ways fit every card.
_LEAST = 86
# Rows from which a program needs eight warps: it would spill registers with four.
_MANY_ROWS = 64


@dataclass(frozen=True, slots=True)
class Way:
    """The tile sizes and stages of a program of attention.

    Attributes:
        rows: of its tile, a power of two; a token has one for each query head of a key head.
        keys: keys read at once, a power of two.
        warps: of 32 threads.
        stages: turns of keys that are under way at once, the one that is computed included. With
            two, copies wait for the products that still read the memory.
    """

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Ways:
    """The two kinds of tiles of a layer.

    A decode takes a small one, and a chunk that has more tokens than fit into it takes large ones.

    Attributes:
        programs: how many programs of small tiles fit on a multiprocessor.
    """

    small: Way
    large: Way
    programs: int

    def of(self, groups: int) -> tuple[Way, Way]:
        """The small and the large way, if a key head has so many query heads."""
        least = padded(groups)
        small, large = (
            way
            if way.rows >= least
            else replace(way, rows=least, warps=way.warps if least < _MANY_ROWS else 8)
            for way in (self.small, self.large)
        )
        return small, large

    def tokens(self, groups: int) -> tuple[int, int]:
        """Most tokens of a small and of a large tile, if a key head has so many query heads."""
        small, large = self.of(groups)
        return small.rows // groups, large.rows // groups


def padded(size: int) -> int:
    """The power of two, at least 16, to which a dimension of a product is padded."""
    return max(16, 1 << (size - 1).bit_length())


# By capability, and by the numbers of a head in two bytes each. With 128 rows a tile reads its keys
# half as often as with 64: at 300 TFLOPS these would be 5 TB/s, which no L2 cache gives. On cards
# with 100 KB that much does not fit beside the keys, and their products are slower.
_HALF = {
    80: {
        64: Ways(Way(16, 64, 4, 3), Way(128, 32, 8, 3), 4),
        128: Ways(Way(16, 64, 4, 3), Way(128, 64, 8, 3), 2),
        256: Ways(Way(16, 32, 4, 3), Way(64, 32, 8, 3), 2),
    },
    86: {
        64: Ways(Way(16, 32, 4, 3), Way(64, 64, 4, 3), 5),
        128: Ways(Way(16, 32, 4, 3), Way(64, 32, 8, 2), 2),
        256: Ways(Way(16, 16, 4, 3), Way(64, 16, 8, 3), 2),
    },
    90: {
        64: Ways(Way(16, 64, 4, 3), Way(128, 64, 8, 3), 6),
        128: Ways(Way(16, 64, 4, 3), Way(128, 64, 8, 3), 3),
        256: Ways(Way(16, 32, 4, 3), Way(128, 32, 8, 3), 2),
    },
    100: {
        64: Ways(Way(16, 64, 4, 3), Way(128, 64, 8, 3), 6),
        128: Ways(Way(16, 64, 4, 3), Way(128, 64, 8, 3), 3),
        256: Ways(Way(16, 32, 4, 3), Way(128, 32, 8, 3), 2),
    },
    120: {
        64: Ways(Way(16, 32, 4, 3), Way(64, 64, 4, 3), 5),
        128: Ways(Way(16, 32, 4, 3), Way(64, 64, 8, 3), 2),
        256: Ways(Way(16, 16, 4, 3), Way(64, 16, 8, 3), 2),
    },
}
# In float32, without tensor cores, threads have more products under way than registers. It is for
# self-tests: with 64 rows a head of 256 numbers would take 102,784 bytes of shared memory.
_FULL = {
    64: Ways(Way(16, 32, 4, 2), Way(64, 32, 8, 2), 3),
    128: Ways(Way(16, 16, 4, 2), Way(32, 16, 8, 2), 2),
    256: Ways(Way(16, 16, 4, 2), Way(32, 16, 8, 2), 1),
}


def ways_for(capability: int, head_dim: int, itemsize: int) -> Ways:
    """How attention is computed on a card.

    Args:
        capability: as 90 for sm_90; 0 is Triton's interpreter. A card that is not in the table has
            the ways of the newest before it of its generation, or of the least.
        head_dim: numbers of a key or a value of one head, the more of both; at most 256.
        itemsize: bytes of each.
    """
    table = _FULL if itemsize == 4 else _HALF[_known(capability)]
    return next(ways for size, ways in table.items() if head_dim <= size)


def _known(capability: int) -> int:
    before = [one for one in _HALF if one <= capability and one // 10 == capability // 10]
    return max(before, default=_LEAST)
