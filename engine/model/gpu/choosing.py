"""Choosing: measures the fastest way to compute each product of few rows on its device."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.gpu.products import RUNGS, Product, ProductShape
from engine.model.gpu.stream import Stream
from engine.model.program.verify import TOLERANCE, difference
from engine.triton.product import Strip, strips

logger = logging.getLogger(__name__)

# How often all products of a shape are timed, for a median.
_TIMES = 7
# A strip has to save this part of cuBLAS's time, because two measurements of the same launches
# differ too.
_LEAST_GAIN = 0.03

Clock = Callable[[Callable[[], None]], float]
Candidates = Callable[[int], Sequence[Strip]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The measurement of one shape and number of rows.

    Attributes:
        strip: the fastest strip with correct results; None if there is none.
        cublas, by_strip: seconds of one product with its norm and the operations after it.
        is_taken: whether steps use the strip.
    """

    shape: ProductShape
    rows: int
    strip: Strip | None
    cublas: float
    by_strip: float
    is_taken: bool


def clock_on(stream: Stream) -> Clock:
    """Measures the median seconds that a device takes for some launches, captured in a graph."""

    def seconds(work: Callable[[], None]) -> float:
        replay = stream.capture(work)
        stream.enqueue(replay).wait()
        return statistics.median(stream.enqueue(replay).wait() for _ in range(_TIMES))

    return seconds


def choose(
    products: Sequence[Product], clock: Clock, candidates: Candidates = strips
) -> list[Chosen]:
    """Measure, for each shape and number of rows, and make steps use the fastest way.

    The products of all layers are timed one after the other, as in a step, so that no cache still
    holds the matrix that a product reads. The buffers that the products write are zeroed
    afterwards.

    Args:
        candidates: the strips to measure for a number of rows.
    """
    by_shape: dict[ProductShape, list[Product]] = {}
    for one in products:
        by_shape.setdefault(one.shape, []).append(one)
    found: list[Chosen] = []
    for shape, alike in by_shape.items():
        most = len(alike[0].operands.out)
        # A program for at most six rows cannot run eight, so six are measured instead.
        for rows in sorted({min(rung, most) for rung in RUNGS}):
            found.append(_fastest(shape, rows, alike, clock, candidates(rows)))
    with torch.inference_mode():
        for one in products:
            for tensor in _matrices(one):
                tensor.zero_()
    for shape in by_shape:
        of_shape = [one for one in found if one.shape == shape]
        logger.info("products of few rows: %s: %s", shape, ", ".join(map(_show, of_shape)))
    return found


def _fastest(
    shape: ProductShape, rows: int, alike: list[Product], clock: Clock, strips: Sequence[Strip]
) -> Chosen:
    def all_by(strip: Strip | None) -> Callable[[], None]:
        def work() -> None:
            for one in alike:
                if strip is None:
                    one.by_cublas(rows)
                else:
                    one.by_strip(rows, strip)

        return work

    cublas = clock(all_by(None)) / len(alike)
    best, least = None, float("inf")
    for strip in strips:
        try:
            if not _is_right(alike[0], rows, strip):
                logger.warning("%s by %s computes something else than cuBLAS", shape, strip)
                continue
            seconds = clock(all_by(strip)) / len(alike)
        except Exception as error:  # it may not fit this GPU: too much shared memory, for one
            logger.debug("%s by %s: %s", shape, strip, error)
            continue
        if seconds < least:
            best, least = strip, seconds
    is_taken = least < (1 - _LEAST_GAIN) * cublas
    alike[0].choice.take(rows, best if is_taken else None)
    return Chosen(shape, rows, best, cublas, least, is_taken)


@torch.inference_mode()
def _is_right(product: Product, rows: int, strip: Strip) -> bool:
    """Whether a strip's results agree with those of cuBLAS, for random numbers."""
    given = product.operands
    generator = torch.Generator(given.out.device).manual_seed(rows)
    for tensor in _matrices(product):
        tensor[:rows].normal_(generator=generator)
    before = given.out[:rows].clone()
    product.by_cublas(rows)
    expected = given.out[:rows].clone()
    given.out[:rows] = before
    product.by_strip(rows, strip)
    return difference(given.out[:rows], expected) <= TOLERANCE[given.x.dtype]


def _matrices(product: Product) -> list[Tensor]:
    """The matrices that a product reads and writes in steps."""
    given = product.operands
    some = [given.x, given.out]
    return some if given.residual is None else [*some, given.residual]


def _show(chosen: Chosen) -> str:
    if chosen.strip is None:
        return f"{chosen.rows} rows by cuBLAS"
    gain = chosen.cublas / chosen.by_strip
    way = f"{chosen.strip.lines} x {chosen.strip.depth}" if chosen.is_taken else "cuBLAS"
    return f"{chosen.rows} rows by {way} ({gain:.2f}x)"
