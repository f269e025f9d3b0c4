"""Launches of the Triton kernels as models have them, on tensors without memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.model.gpu.sampler import CHOOSING_WARPS, SCORING_WARPS
from engine.model.program.rotation import Rotation
from engine.triton import sampling
from engine.triton.attention import Pieces, paged_attention
from engine.triton.elementwise import elementwise
from engine.triton.embed import embed
from engine.triton.experts import ExpertWeights, RouteWay, experts, room_for
from engine.triton.gated import gated
from engine.triton.gather import gather
from engine.triton.norm import norm
from engine.triton.overlap import launch_options
from engine.triton.product import Normed, Strip, is_for_one_row, product, strips
from engine.triton.rotary import rotate_and_store
from engine.triton.sampling_fields import CANDIDATES, FIELDS, chunk_of
from engine.triton.ways import ways_for
from engine.triton.work import ITEM, MERGE

Launcher = Callable[[], None]


def matrix(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


numbers = partial(matrix, dtype=torch.float32)
integers = partial(matrix, dtype=torch.int32)


def attend(
    capability: int,
    head_dim: int = 128,
    groups: int = 4,
    *,
    large: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    merged: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> Launcher:
    """Attention with 8 heads of keys, as a GPU of this capability has it, or else the merge of its
    parts.
    """
    way = ways_for(capability, head_dim, dtype.itemsize).of(groups)[large]
    parts = numbers(9, 8, way.rows, head_dim), numbers(9, 8, way.rows, 2)
    pieces = Pieces(way, integers(2, len(ITEM)), integers(int(merged), len(MERGE)), *parts)
    heads = 8 * groups
    query = matrix(4, heads, head_dim, dtype=dtype)
    cache = matrix(100, 8, 16, head_dim, dtype=dtype)
    return lambda: paged_attention(
        query,
        query,
        cache,
        cache,
        pieces,
        integers(2, 512),
        scaling=0.1,
        softcap=softcap,
        window=window,
        sinks=matrix(heads, dtype=dtype) if sinks else None,
    )


def rotate(head_dim: int, value_dim: int, half: int, interleaved: bool) -> Launcher:
    """Rotation of 32 heads over 8, beside each other in a matrix."""
    sizes = (32 * head_dim, 8 * head_dim, 8 * value_dim)
    query, key, value = matrix(4, sum(sizes)).split(sizes, dim=1)
    tables = Rotation(numbers(8192, half), numbers(8192, half), interleaved)
    keys, values = (matrix(100, 8, 16, dim) for dim in (head_dim, value_dim))
    return lambda: rotate_and_store(
        query,
        key,
        value,
        tables if half else None,
        tables if half else None,
        keys,
        values,
        integers(4),
        integers(4),
        integers(256, 512),
        heads=32,
        kv_heads=8,
    )


def normalize(width: int, groups: int = 1, center: bool = False) -> Launcher:
    x = matrix(4, groups * width)
    bias = numbers(width) if center else None
    return lambda: norm(x, x, groups, numbers(width), bias, 1e-6, center)


def multiply(rows: int, strip: Strip, *, is_gated: bool = False) -> Launcher:
    """Products of Llama-3.1-8B: gate and up behind their norm, or down beside the residual."""
    width, columns = (4096, 14_336) if is_gated else (14_336, 4096)
    out = matrix(rows, columns)
    return lambda: product(
        out,
        matrix(rows, width),
        matrix(columns * (2 if is_gated else 1), width),
        strip,
        norm=Normed(numbers(width), 1e-5) if is_gated else None,
        activation="silu" if is_gated else "none",
        is_gated=is_gated,
        residual=None if is_gated else out,
    )


def sample(vocab_size: int, kernel: str, *, masked: bool = False) -> Launcher:
    """Sampling of 8 rows; both kernels are launched, and the one of this name is compiled."""
    chunk, chunks = chunk_of(vocab_size)
    sizes = {"VOCAB": vocab_size, "CHUNK": chunk, "CHUNKS": chunks}
    maxima, sums = numbers(8, chunks), matrix(8, chunks, dtype=torch.int64)
    logits, rows = numbers(8, vocab_size), integers(8, len(FIELDS))
    counts = matrix(8, vocab_size, dtype=torch.int16)
    if kernel == "score":
        return lambda: sampling.score[1, 1](
            logits, logits, maxima, sums, rows, counts, integers(8, 1024, 2), integers(8, 4008),
            **sizes, MAX_BIASES=1024, MASKED=masked, num_warps=SCORING_WARPS,
            enable_fp_fusion=False, **launch_options(),
        )  # fmt: skip
    return lambda: sampling.choose[(1,)](
        logits, logits, maxima, sums, integers(8, chunks), integers(8, 2, CANDIDATES), rows, counts,
        integers(8), integers(8), **sizes, num_warps=CHOOSING_WARPS, **launch_options(),
    )  # fmt: skip


def attention(capability: int) -> dict[str, Launcher]:
    """Heads of 128 are Llama 3's. Those of 64 are gpt-oss's, and those of 256 Gemma 2's, with all
    that they have besides. Exact is in float32, as self-tests are.
    """
    way = partial(attend, capability)
    narrow = {"head_dim": 64, "groups": 8, "window": 128, "sinks": True}
    wide = {"head_dim": 256, "groups": 2, "window": 4095, "sinks": True, "softcap": 50.0}
    exact = {"dtype": torch.float32}
    kinds: dict[str, dict[str, Any]] = {
        **{"": {}, "narrow ": narrow, "wide ": wide},
        **{"exact ": exact, "exact narrow ": exact | narrow, "exact wide ": exact | wide},
    }
    sizes = {"decode": False, "prefill": True}
    return {
        **{
            f"{kind}{size}": way(large=sizes[size], **kinds[kind])
            for kind in kinds
            for size in sizes
        },
        "merge": way(merged=True),
        "wide merge": way(large=True, merged=True, **wide),
        "decode of a head": way(128, 128),
    }


# Each of these moves its matrices in accesses of 16 bytes.
BESIDE: dict[str, Launcher] = {
    "norm": normalize(4096),
    "norm of heads": normalize(128, groups=40),
    "norm of 896": normalize(896),
    "norm of wide rows": normalize(16384, center=True),
    "rotation": rotate(128, 128, 64, False),
    "rotation of pairs": rotate(192, 128, 32, True),
    "rotation of 80": rotate(80, 80, 40, False),
    "store": rotate(128, 128, 0, False),
    "gated": lambda: gated(matrix(4, 14336), matrix(4, 28672), "silu"),
    "gated with biases": lambda: gated(matrix(4, 4864), matrix(4, 9728), "gelu", numbers(9728)),
    "sum": lambda: elementwise(matrix(4, 4096), matrix(4, 4096), "add", matrix(4, 4096)),
    "sum of a row": lambda: elementwise(matrix(4, 768), matrix(4, 768), "add", matrix(768)),
    "softcap": lambda: elementwise(numbers(4, 256000), numbers(4, 256000), activation="tanh"),
    "embed": lambda: embed(matrix(4, 4096), matrix(9, 4096), integers(4), integers(4)),
    "gather": lambda: gather(matrix(4, 4096), matrix(9, 4096), integers(4)),
}
# The vocabularies of Llama 3, Gemma 3 1B and Gemma 3, which have chunks of 128, 256 and 512 logits.
SAMPLING: dict[str, Launcher] = {
    "score": sample(128_256, "score"),
    "score of 262,208": sample(262_208, "score"),
    "score with masks": sample(128_256, "score", masked=True),
    "score of 262,208 with masks": sample(262_208, "score", masked=True),
    "choose": sample(128_256, "choose"),
    "choose of 262,144": sample(262_144, "choose"),
    "choose of 262,208": sample(262_208, "choose"),
}


def mix(
    tokens: int, number: int, inner: int, width: int, way: RouteWay, **changes: Any
) -> Launcher:
    """A mixture of experts: all launches, one of which is compiled."""
    dtype = changes.pop("dtype", torch.bfloat16)
    both, down = (
        matrix(number, 2 * inner, width, dtype=dtype),
        matrix(number, width, inner, dtype=dtype),
    )
    given = ExpertWeights(both[:, :inner], both[:, inner:], down, (), "silu")
    room = room_for(tokens * way.chosen, number, inner, width, dtype, torch.device("meta"))
    x = matrix(tokens, width, dtype=dtype)
    return lambda: experts(
        x, x, numbers(tokens, number), integers(tokens), way, replace(given, **changes), room
    )


def biases(number: int, inner: int, width: int) -> tuple[Tensor, ...]:
    return numbers(number, inner), numbers(number, inner), numbers(number, width)


# Those of Qwen3-30B-A3B, and what others have besides: groups and a correction (DeepSeek V3, whose
# experts are as many as there are), biases and limits (gpt-oss).
_QWEN = (128, 768, 2048, RouteWay(8, "softmax", 1, 1, 1, True, 1.0, None, None))
_DEEPSEEK = RouteWay(8, "sigmoid", 8, 4, 2, True, 2.5, numbers(256), None)
_GPT = (32, 2880, 2880, RouteWay(4, "softmax", 1, 1, 1, True, 1.0, None, None))
_CLAMPED: dict[str, Any] = {"biases": biases(32, 2880, 2880), "activation": "quick_gelu"}
_CLAMPED |= {"limit": 7.0, "shift": 1.0}
_MIXES: dict[str, Launcher] = {
    "": mix(8, *_QWEN),
    "many ": mix(2048, *_QWEN),
    "exact ": mix(8, *_QWEN, dtype=torch.float32),
    "exact many ": mix(2048, *_QWEN, dtype=torch.float32),
    "clamped ": mix(8, *_GPT, **_CLAMPED),
    "many clamped ": mix(2048, *_GPT, **_CLAMPED),
    "grouped ": mix(8, 256, 2048, 7168, _DEEPSEEK),
}
_LAUNCHES = ("route", "sort", "experts up", "experts down", "sum of experts")
EXPERTS: dict[str, Launcher] = {
    f"{kind}{name}": launcher for kind, launcher in _MIXES.items() for name in _LAUNCHES
}
# Which launch of a launcher a variant is, where it is not the last one.
NTH = {f"{kind}{name}": nth for kind in _MIXES for nth, name in enumerate(_LAUNCHES)}
ONE_ROW = [strip for strip in strips(1) if is_for_one_row(strip)]
PRODUCTS: dict[str, Launcher] = {
    f"product of {rows}{', gated' if is_gated else ''}, {strip.lines} x {strip.depth}": multiply(
        rows, strip, is_gated=is_gated
    )
    for rows, some in ((1, ONE_ROW), (8, strips(8)))
    for strip in some
    for is_gated in (False, True)
}


def variants(capability: int) -> dict[str, Launcher]:
    """All launches on a GPU of this capability, by their names."""
    return attention(capability) | BESIDE | EXPERTS | SAMPLING | PRODUCTS
