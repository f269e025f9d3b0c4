"""Tiles of attention on a GPU: `python -m benchmarks.gpu.tiles [--heads 128,64,256]`.

Each way that may be fastest is timed over decodes or over prompts, and printed as it comes. After
each size of heads there is the line of its card's table in `engine/triton/ways.py`. All of it takes
about a minute and a half, most of which is compilation. `--device cpu` tries it out under Triton's
interpreter, with `TRITON_INTERPRET=1`; its times mean nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.process.columns import row
from benchmarks.gpu.device import Device
from engine.triton.attention import Pieces, paged_attention
from engine.triton.ways import SHARED_MEMORY, Way, Ways
from engine.triton.work import lay_out, most_slots

HEAD = ("heads", "rows", "keys", "warps", "stages", "programs", "us", "least us")
_WIDTHS = (8, 6, 6, 6, 7, 9, 11, 11)
_BLOCK_SIZE = 16
_KV_HEADS, _GROUPS = 8, 4
# Programs of small tiles on a multiprocessor, while ways are compared.
_PROGRAMS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of a step that are alike.

    Attributes:
        queries: of each row.
        context: tokens of each, its queries among them.
    """

    rows: int
    queries: int
    context: int


DECODES = (Case(1, 1, 4096), Case(8, 1, 4096), Case(64, 1, 4096), Case(256, 1, 512))
PROMPTS = (Case(1, 2048, 2048), Case(1, 512, 8192), Case(8, 256, 1024))
SMALL_DECODES, SMALL_PROMPTS = (Case(2, 1, 40),), (Case(1, 70, 90),)


def ways(capability: int, head_dim: int) -> tuple[list[Way], list[Way]]:
    """The small and the large tiles that may be fastest and fit a card, for numbers of two bytes.

    Those that spill registers are slow, and so need not be known here.
    """
    small = [Way(16, keys, 4, stages) for keys in (16, 32, 64) for stages in (2, 3, 4)]
    large = [
        Way(rows, keys, warps, stages)
        for rows, warps in ((64, 4), (64, 8), (128, 8))
        for keys in (16, 32, 64)
        for stages in (2, 3)
        if keys > 16 or head_dim > 128
    ]
    most = SHARED_MEMORY.get(capability, min(SHARED_MEMORY.values()))

    def fits(way: Way) -> bool:
        keys_and_values = 2 * way.keys * (way.stages - 1)
        return 2 * head_dim * (way.rows + keys_and_values) <= most

    return [way for way in small if fits(way)], [way for way in large if fits(way)]


def attending(
    device: Device, case: Case, head_dim: int
) -> Callable[[Way, int], Callable[[], object]]:
    """A maker of launches of attention, for a way and so many programs on a multiprocessor."""
    dtype = torch.bfloat16 if device.is_gpu else torch.float32
    blocks = -(-case.context // _BLOCK_SIZE)
    shape = (case.rows * blocks, _KV_HEADS, _BLOCK_SIZE, head_dim)
    keys, values = (torch.randn(shape, dtype=dtype, device=device.torch) for _ in range(2))
    heads = _KV_HEADS * _GROUPS
    query = torch.randn(case.rows * case.queries, heads, head_dim, dtype=dtype, device=device.torch)
    output = torch.empty_like(query)
    tables = torch.randperm(case.rows * blocks).view(case.rows, blocks)
    tables = tables.to(device.torch, torch.int32)
    processors = 1
    if device.is_gpu:
        processors = torch.cuda.get_device_properties(device.torch).multi_processor_count

    def by(way: Way, programs: int) -> Callable[[], object]:
        share = max(1, programs * processors // _KV_HEADS)
        tokens = way.rows // _GROUPS
        # A step has small tiles and large ones. All of these are of the kind that is timed.
        is_small = case.queries <= tokens
        works = lay_out(
            np.full(case.rows, case.context - case.queries),
            np.full(case.rows, case.queries),
            tiles=(tokens, tokens) if is_small else (0, tokens),
            window=None,
            programs=share,
        )
        work = works[0] if is_small else works[1]
        room = (most_slots(share), _KV_HEADS, way.rows)
        parts, states = (
            torch.empty(*room, size, dtype=torch.float32, device=device.torch)
            for size in (head_dim, 2)
        )
        items, merges = (
            torch.from_numpy(one).to(device.torch) for one in (work.items, work.merges)
        )
        pieces = Pieces(way, items, merges, parts, states)
        return lambda: paged_attention(
            output,
            query,
            keys,
            values,
            pieces,
            tables,
            scaling=head_dim**-0.5,
            softcap=None,
            window=None,
            sinks=None,
        )

    return by


def fastest(
    device: Device, cases: Sequence[Case], head_dim: int, tried: Sequence[tuple[Way, int]]
) -> Iterator[tuple[Way, int, float]]:
    """Each way and number of programs with its seconds, as the geometric mean over cases; infinite
    where it cannot be run.
    """
    makers = [attending(device, case, head_dim) for case in cases]
    for way, programs in tried:
        try:
            seconds = [device.seconds(device.captured(by(way, programs))) for by in makers]
        except Exception as error:  # it may not fit: the others are to be seen
            print(f"{way}: {type(error).__name__}: {error}"[:200], flush=True)
            continue
        yield way, programs, math.exp(sum(map(math.log, seconds)) / len(seconds))


def measure(device: Device, capability: int, head_dim: int) -> Ways:
    """Time all that may be fastest, and print it."""
    small, large = ways(capability, head_dim)
    decodes, prompts = (DECODES, PROMPTS) if device.is_gpu else (SMALL_DECODES, SMALL_PROMPTS)

    def best(cases: Sequence[Case], tried: Sequence[tuple[Way, int]]) -> tuple[Way, int]:
        found, least = tried[0], math.inf
        for way, programs, seconds in fastest(device, cases, head_dim, tried):
            if seconds < least:
                found, least = (way, programs), seconds
            numbers = (way.rows, way.keys, way.warps, way.stages, programs)
            times = (f"{one * 1e6:,.1f}" for one in (seconds, least))
            print(row([str(head_dim), *map(str, numbers), *times], _WIDTHS), flush=True)
        return found

    decode, _ = best(decodes, [(way, _PROGRAMS) for way in small])
    decode, programs = best(decodes, [(decode, number) for number in (2, 3, 4, 6)])
    prompt, _ = best(prompts, [(way, programs) for way in large])
    return Ways(decode, prompt, programs)


def line(head_dim: int, found: Ways) -> str:
    """A line of the table in `engine/triton/ways.py`."""
    small, large = (
        f"Way({way.rows}, {way.keys}, {way.warps}, {way.stages})"
        for way in (found.small, found.large)
    )
    return f"        {head_dim}: Ways({small}, {large}, {found.programs}),"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tiles")
    parser.add_argument("--heads", default="128,64,256", help="numbers of a head")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args(arguments)
    device = Device(options.device)
    capability = 0
    if device.is_gpu:
        major, minor = torch.cuda.get_device_capability(device.torch)
        capability = 10 * major + minor
    print(f"{device.name}, sm_{capability}", flush=True)
    print(row(list(HEAD), _WIDTHS), flush=True)
    for head_dim in map(int, options.heads.split(",")):
        print(line(head_dim, measure(device, capability, head_dim)), flush=True)


if __name__ == "__main__":
    main()
