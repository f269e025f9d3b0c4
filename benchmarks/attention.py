"""Attention over the paged cache: the native kernels beside torch, and the memory's bandwidth.

    python -m benchmarks.attention [--threads N] [--rounds N]

Rows of one token decode against contexts of one length, in bfloat16, with 14 heads on 2 key/value
heads of 64 dimensions. The cache is cold: layers take turns, and there are so many that together
they hold `CACHE_BYTES`. Each round times every contender once, in turn; figures are medians of the
rounds. Rates count the keys and values that have to be read. "of read" compares with a parallel sum
over as much memory in the same round. Prefill counts the products that causal attention needs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from app.process.columns import row
from benchmarks.heading import heading
from engine.api.config import BLOCK_SIZE
from engine.cache.storage import CacheShape
from engine.model.attention.base import AttentionBackend, StepContext
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.attention.params import AttentionParams
from engine.model.attention.torch_backend import TorchAttention
from engine.native import kernels

HEADS, KV_HEADS, HEAD_DIM = 14, 2, 64
PARAMS = AttentionParams(HEAD_DIM**-0.5)
TOKEN_BYTES = KV_HEADS * HEAD_DIM * 2 * 2
CACHE_BYTES = 1 << 30
DECODES = [
    (1, 512),
    (1, 2048),
    (8, 128),
    (8, 512),
    (8, 2048),
    (32, 128),
    (32, 512),
    (32, 2048),
    (1, 16384),
]
PREFILLS = [512, 2048]
DECODE_WIDTHS = (14, 10, 7, 8, 7, 6)
PREFILL_WIDTHS = (14, 10, 7, 8, 14)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def step(
    backend: AttentionBackend, layers: int, starts: list[int], counts: list[int]
) -> StepContext:
    """A step over a cache of random numbers, whose blocks lie in random order."""
    blocks = [
        -(-(start + count) // BLOCK_SIZE) for start, count in zip(starts, counts, strict=True)
    ]
    storage = backend.storage(
        CacheShape(
            num_layers=layers,
            num_blocks=sum(blocks),
            block_size=BLOCK_SIZE,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            value_dim=HEAD_DIM,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )
    )
    for layer in (*storage.keys, *storage.values):
        layer.uniform_(-1, 1)
    tables = np.random.default_rng(0).permutation(sum(blocks)).reshape(len(starts), -1)
    return StepContext(
        backend=backend,
        storage=storage,
        slots=torch.empty(0, dtype=torch.int64),
        starts=np.array(starts),
        counts=np.array(counts),
        block_tables=tables,
    )


def attend(context: StepContext, query: Tensor, layer: int) -> Tensor:
    return context.backend.attend(query, layer, context, PARAMS)


def decode(backends: list[AttentionBackend], rows: int, tokens: int, rounds: int) -> list[float]:
    """The rates of reading alone and of each backend, in GB/s."""
    layers = max(2, CACHE_BYTES // (rows * tokens * TOKEN_BYTES))
    query = torch.randn(rows, HEADS, HEAD_DIM).bfloat16()
    contexts = [step(b, layers, [tokens - 1] * rows, [1] * rows) for b in backends]
    memory = torch.ones(CACHE_BYTES // 4)
    rates: list[list[float]] = []
    for _ in range(rounds):
        spent = [seconds(memory.sum) / memory.nbytes]
        for context in contexts:
            elapsed = seconds(lambda c=context: [attend(c, query, n) for n in range(layers)])  # type: ignore[misc]
            spent.append(elapsed / (layers * rows * tokens * TOKEN_BYTES))
        rates.append([1e-9 / each for each in spent])
    return [statistics.median(column) for column in zip(*rates, strict=True)]


def prefill(backends: list[AttentionBackend], tokens: int, rounds: int) -> list[float]:
    """The rates of each backend and of torch's own attention on contiguous keys, in TFLOPS."""
    query = torch.randn(tokens, HEADS, HEAD_DIM).bfloat16()
    contexts = [step(b, 1, [0], [tokens]) for b in backends]
    dense = query.transpose(0, 1)[None].contiguous()
    key, value = (torch.randn(1, KV_HEADS, tokens, HEAD_DIM).bfloat16() for _ in range(2))
    works: list[Callable[[], object]] = [
        *(lambda c=context: attend(c, query, 0) for context in contexts),
        lambda: scaled_dot_product_attention(dense, key, value, is_causal=True, enable_gqa=True),
    ]
    flops = 2 * tokens * (tokens + 1) * HEAD_DIM * HEADS
    rates = [[flops * 1e-12 / seconds(work) for work in works] for _ in range(rounds + 1)][1:]
    return [statistics.median(column) for column in zip(*rates, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    native = kernels()
    if native is None:
        raise SystemExit("this installation has no native kernels")
    native.set_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    backends = cast(list[AttentionBackend], [CpuAttention(), TorchAttention()])
    with torch.inference_mode():
        print(heading(f"{native.level()}, {arguments.threads} threads", "bfloat16"))
        print(row(("decode", "read GB/s", "ours", "of read", "torch", "ratio"), DECODE_WIDTHS))
        for rows, tokens in DECODES:
            read, ours, theirs = decode(backends, rows, tokens, arguments.rounds)
            rates = (f"{read:.1f}", f"{ours:.1f}", f"{ours / read:.0%}", f"{theirs:.1f}")
            print(row((f"{rows} x {tokens}", *rates, f"{ours / theirs:.1f}"), DECODE_WIDTHS))
        print(row(("prefill", "TFLOPS", "torch", "sdpa", "ratio"), PREFILL_WIDTHS))
        for tokens in PREFILLS:
            ours, theirs, sdpa = prefill(backends, tokens, arguments.rounds)
            cells = (str(tokens), f"{ours:.2f}", f"{theirs:.2f}", f"{sdpa:.2f}")
            print(row((*cells, f"{ours / sdpa:.1f}"), PREFILL_WIDTHS))


if __name__ == "__main__":
    main()
