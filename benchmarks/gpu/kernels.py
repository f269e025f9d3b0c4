"""Single kernels beside what the device can do: attention, and the products of a decode step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.device import Device, Limits
from engine.cache.storage import CacheShape
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams
from engine.model.attention.triton_backend import TritonAttention, programs_on, ways_on
from engine.triton.attention import Pieces, paged_attention
from engine.triton.work import lay_out, most_slots

Cells = tuple[str, ...]

ATTENTION_HEAD: Cells = ("heads", "rows", "context", "us", "GB/s", "of copy")
PRODUCT_HEAD: Cells = ("out x in", "rows", "us", "GB/s", "of copy", "TFLOPS", "of most")
SDPA_HEAD: Cells = (
    *("heads", "rows", "queries", "context", "ours us", "SDPA us", "gain", "TFLOPS", "GB/s"),
    "difference",
)
_BLOCK_SIZE = 16


def attention(
    device: Device, limits: Limits, cases: list[tuple[int, int]], *, heads: int, kv_heads: int
) -> Iterator[Cells]:
    """Attention of decodes with heads of 128 numbers.

    Args:
        cases: rows, and tokens of each one's context.
    """
    for rows, context in cases:
        blocks = -(-context // _BLOCK_SIZE)
        dtype = torch.bfloat16 if device.is_gpu else torch.float32
        shape = (rows * blocks, kv_heads, _BLOCK_SIZE, 128)
        keys, values = (torch.randn(shape, dtype=dtype, device=device.torch) for _ in range(2))
        query = torch.randn(rows, heads, 128, dtype=dtype, device=device.torch)
        tables = torch.randperm(rows * blocks).view(rows, blocks).to(device.torch, torch.int32)
        ways = ways_on(device.torch, 128, dtype)
        programs = programs_on(device.torch, kv_heads, ways)
        starts = np.full(rows, context - 1)
        work, _ = lay_out(
            starts,
            np.ones(rows, np.int64),
            tiles=ways.tokens(heads // kv_heads),
            window=None,
            programs=programs,
        )
        way, _ = ways.of(heads // kv_heads)
        room = (most_slots(programs), kv_heads, way.rows)
        parts, states = (
            torch.empty(*room, size, dtype=torch.float32, device=device.torch) for size in (128, 2)
        )
        items, merges = (
            torch.from_numpy(one).to(device.torch) for one in (work.items, work.merges)
        )
        pieces = Pieces(way, items, merges, parts, states)
        output = torch.empty_like(query)

        def attend(
            output: torch.Tensor = output,
            query: torch.Tensor = query,
            keys: torch.Tensor = keys,
            values: torch.Tensor = values,
            pieces: Pieces = pieces,
            tables: torch.Tensor = tables,
        ) -> None:
            paged_attention(
                output,
                query,
                keys,
                values,
                pieces,
                tables,
                scaling=128**-0.5,
                softcap=None,
                window=None,
                sinks=None,
            )

        seconds = device.seconds(device.captured(attend))
        rate = 2 * rows * context * kv_heads * 128 * dtype.itemsize / seconds
        yield (
            f"{heads}/{kv_heads}",
            str(rows),
            f"{context:,}",
            f"{seconds * 1e6:,.1f}",
            f"{rate / 1e9:,.0f}",
            f"{rate / limits.copy:.0%}",
        )


def beside_sdpa(
    device: Device, cases: list[tuple[int, int, int]], *, heads: int, kv_heads: int, head_dim: int
) -> Iterator[Cells]:
    """Our attention over a paged cache beside torch's over keys and values in one piece.

    Args:
        cases: rows, queries of each, and tokens of each one's context, the queries among them.
    """
    dtype = torch.bfloat16 if device.is_gpu else torch.float32
    for rows, queries, context in cases:
        blocks = -(-context // _BLOCK_SIZE)
        backend = TritonAttention()
        storage = backend.storage(
            CacheShape(
                num_layers=1,
                num_blocks=rows * blocks,
                block_size=_BLOCK_SIZE,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                value_dim=head_dim,
                dtype=dtype,
                device=device.torch,
            )
        )
        keys, values = (
            torch.randn(rows, kv_heads, context, head_dim, dtype=dtype, device=device.torch)
            for _ in range(2)
        )
        tables = np.arange(rows * blocks).reshape(rows, blocks)
        slots = torch.arange(context, device=device.torch)
        for row in range(rows):
            places = slots + row * blocks * _BLOCK_SIZE
            storage.write(0, places, keys[row].transpose(0, 1), values[row].transpose(0, 1))
        query = torch.randn(rows * queries, heads, head_dim, dtype=dtype, device=device.torch)
        starts, counts = np.full(rows, context - queries), np.full(rows, queries)
        step = StepContext(backend, storage, slots, starts, counts, tables)
        params = AttentionParams(head_dim**-0.5)
        whole = query.view(rows, queries, heads, head_dim).transpose(1, 2).contiguous()
        bias = causal_lower_right(queries, context)
        found: list[torch.Tensor] = []

        def ours(
            query: torch.Tensor = query,
            step: StepContext = step,
            params: AttentionParams = params,
            found: list[torch.Tensor] = found,
        ) -> None:
            found[:] = [step.backend.attend(query, 0, step, params)]

        def theirs(
            whole: torch.Tensor = whole,
            keys: torch.Tensor = keys,
            values: torch.Tensor = values,
            found: list[torch.Tensor] = found,
            bias: torch.Tensor = bias,
        ) -> None:
            found[:] = [
                scaled_dot_product_attention(
                    whole,
                    keys,
                    values,
                    attn_mask=bias,
                    enable_gqa=True,
                )
            ]

        ours()
        mine = found[0].view(rows, queries, heads, head_dim).transpose(1, 2).float()
        theirs()
        worst = float((mine - found[0].float()).abs().max())
        both = [device.seconds(device.captured(one)) for one in (ours, theirs)]
        pairs = rows * heads * queries * (context - (queries - 1) / 2)
        moved = 2 * rows * context * kv_heads * head_dim * dtype.itemsize
        yield (
            f"{heads}/{kv_heads} x {head_dim}",
            str(rows),
            str(queries),
            f"{context:,}",
            *(f"{seconds * 1e6:,.1f}" for seconds in both),
            f"{both[1] / both[0]:.2f}x",
            f"{4 * pairs * head_dim / both[0] / 1e12:.1f}",
            f"{moved / both[0] / 1e9:,.0f}",
            f"{worst:.1e}",
        )


def products(
    device: Device, limits: Limits, shapes: list[tuple[int, int]], rows: list[int]
) -> Iterator[Cells]:
    """cuBLAS's products as a decode step has them.

    Args:
        shapes: columns of the result, and of the input.
    """
    dtype = torch.bfloat16 if device.is_gpu else torch.float32
    for out, width in shapes:
        # More weights than a cache holds, taken in turns.
        copies = max(2, (1 << 29) // (out * width * dtype.itemsize)) if device.is_gpu else 2
        weights = [torch.randn(out, width, dtype=dtype, device=device.torch) for _ in range(copies)]
        for number in rows:
            x = torch.randn(number, width, dtype=dtype, device=device.torch)
            result = torch.empty(number, out, dtype=dtype, device=device.torch)

            def multiply(
                x: torch.Tensor = x,
                result: torch.Tensor = result,
                weights: list[torch.Tensor] = weights,
            ) -> None:
                for weight in weights:
                    torch.mm(x, weight.t(), out=result)

            seconds = device.seconds(device.captured(multiply)) / copies
            moved = weights[0].nbytes + x.nbytes + result.nbytes
            flops = 2 * number * out * width / seconds
            yield (
                f"{out} x {width}",
                str(number),
                f"{seconds * 1e6:,.1f}",
                f"{moved / seconds / 1e9:,.0f}",
                f"{moved / seconds / limits.copy:.0%}",
                f"{flops / 1e12:.1f}",
                f"{flops / limits.flops:.0%}",
            )
