"""Following: what it takes to compile structures, and to follow texts that have them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks.structure.cases import CASES
from benchmarks.structure.sides import SIDES, Follower, Side
from benchmarks.structure.timed import timed
from benchmarks.structure.vocab import Vocab

HEAD = (
    *("vocabulary", "structure", "by", "compile ms", "tokens"),
    *("mask us", "p95", "max", "move us"),
)


def measure(vocab: Vocab, rounds: int = 3) -> list[list[str]]:
    """A row for each structure and side; the best of some rounds, each from the beginning."""
    rows: list[list[str]] = []
    for name, make in SIDES.items():
        side: Side
        seconds, side = timed(partial(make, vocab.words))
        rows.append([vocab.name, "(the vocabulary)", name, f"{1e3 * seconds:.0f}", *[""] * 5])
        for case, (stated, text) in CASES.items():
            tokens = vocab.encode(text)
            try:
                best = min(timed(partial(side.compile, stated))[0] for _ in range(rounds))
                masks, moves = _follow(side.compile(stated)(), tokens)
            except Exception as error:
                rows.append([vocab.name, case, name, f"{type(error).__name__}", *[""] * 5])
                continue
            figures = (statistics.median(masks), _high(masks), max(masks), statistics.fmean(moves))
            rows.append(
                [
                    *(vocab.name, case, name, f"{1e3 * best:.1f}", str(len(masks))),
                    *(f"{1e6 * seconds:.0f}" for seconds in figures),
                ]
            )
    return rows


def _follow(follower: Follower, tokens: Sequence[int]) -> tuple[list[float], list[float]]:
    """The time of each mask and each move, for 10 s at most; the text is checked to be allowed."""
    masks: list[float] = []
    moves: list[float] = []
    for token in tokens:
        if sum(masks) > 10:
            break
        seconds, bits = timed(follower.mask)
        if not bits[token // 32] >> token % 32 & 1:
            raise RuntimeError(f"token {token} is not allowed")
        masks.append(seconds)
        moves.append(timed(partial(follower.accept, token))[0])
    return masks, moves


def _high(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(0.95 * (len(seconds) - 1))]
