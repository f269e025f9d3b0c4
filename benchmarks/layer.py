"""The small operations of a layer: ours beside torch's, microseconds a call.

    python -m benchmarks.layer [--rows 1,8,32,2048] [--dtype bfloat16] [--threads 2]

Both take turns in one process, on the same number of threads; figures are medians of their turns.
Ours is called from Python with tensors each time. `calling` says how much of its time that takes:
it is the time of the same call with no rows. A captured step is called only once for all its
operations.

Neither side may disturb the other. Threads that spin for work take the cores of the other side.
Threads that sleep at once (OMP_WAIT_POLICY=PASSIVE) take time to wake in every call: torch's
silu * up of 8 rows took 140 us with it and 17 us without, on a virtual machine of two cores. So
torch's threads spin for a while, which is OpenMP's default. A turn begins with a pause, in which
the other side's threads fall asleep, and with calls that are not counted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING

from app.process.columns import row
from benchmarks.heading import heading
from engine.native import kernels

if TYPE_CHECKING:
    import torch
    from torch import Tensor

HIDDEN, INNER, HEADS, VOCABULARY = 896, 4864, 14, 32_000
EPS = 1e-6
TURNS = 15
TURN_SECONDS = 0.005
PAUSE_SECONDS = 0.005
HEAD = ("operation", "rows", "ours", "calling", "torch", "ratio")
WIDTHS = (-20, 5, 9, 9, 9, 6)
SPINS = "300000"  # the default of GNU OpenMP, about a millisecond

Pair = tuple[Callable[[], object], Callable[[], object]]


def make_pairs(native: ModuleType, rows: int, dtype: torch.dtype) -> dict[str, Pair]:
    """The calls of each operation: ours and torch's."""
    import torch
    from torch.nn import functional
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    def matrix(width: int) -> Tensor:
        return torch.randn(rows, width).to(dtype)

    narrow, narrow_out = (matrix(HIDDEN) for _ in range(2))
    gate, up, wide_out = (matrix(INNER) for _ in range(3))
    weight, bias = torch.randn(HIDDEN), torch.randn(HIDDEN)
    wide_weight = torch.randn(INNER)
    its_weight, its_bias, its_wide = weight.to(dtype), bias.to(dtype), wide_weight.to(dtype)
    positions = torch.arange(rows)
    head_dim = HIDDEN // HEADS
    cos, sin = (torch.randn(rows, head_dim // 2) for _ in range(2))
    its_cos, its_sin = (torch.cat((t, t), -1).to(dtype)[None] for t in (cos, sin))
    by_head = narrow.view(1, rows, HEADS, head_dim).transpose(1, 2)
    table = torch.randn(VOCABULARY, HIDDEN).to(dtype)
    packed = table.reshape(-1)  # as large as a packed one, whatever the order of its numbers
    ids = torch.randint(VOCABULARY, (rows,))

    return {
        f"RMSNorm {HIDDEN}": (
            lambda: native.norm(narrow_out, narrow, weight=weight),
            lambda: functional.rms_norm(narrow, (HIDDEN,), its_weight, EPS),
        ),
        f"RMSNorm {INNER}": (
            lambda: native.norm(wide_out, gate, weight=wide_weight),
            lambda: functional.rms_norm(gate, (INNER,), its_wide, EPS),
        ),
        f"LayerNorm {HIDDEN}": (
            lambda: native.norm(narrow_out, narrow, weight=weight, bias=bias, center=True),
            lambda: functional.layer_norm(narrow, (HIDDEN,), its_weight, its_bias, EPS),
        ),
        f"rotate {HEADS} heads": (
            lambda: native.rotate(narrow, HEADS, positions, cos, sin),
            lambda: apply_rotary_pos_emb(by_head, by_head[:, :0], its_cos, its_sin),
        ),
        f"embed {HIDDEN}": (
            lambda: native.embed(narrow_out, ids, table, VOCABULARY, False),
            lambda: functional.embedding(ids, table),
        ),
        f"embed packed {HIDDEN}": (
            lambda: native.embed(narrow_out, ids, packed, VOCABULARY, True),
            lambda: functional.embedding(ids, table),
        ),
        f"silu * up {INNER}": (
            lambda: native.elementwise(wide_out, gate, "multiply", up, "silu"),
            lambda: functional.silu(gate).mul_(up),
        ),
    }


def turn(call: Callable[[], object], count: int) -> float:
    """Seconds of one call, as the mean of `count` calls, once the other side's threads sleep."""
    time.sleep(PAUSE_SECONDS)
    for _ in range(1 + count // 5):
        call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measure(pair: Pair) -> tuple[float, float]:
    """Median seconds of one call of each side; the sides take turns."""
    counts = [1 + int(TURN_SECONDS / turn(call, 3)) for call in pair]
    turns = [[turn(call, n) for call, n in zip(pair, counts, strict=True)] for _ in range(TURNS)]
    ours, theirs = (median(of_one) for of_one in zip(*turns, strict=True))
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,8,32,2048")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is imported
    import torch

    native = kernels()
    if native is None:
        raise SystemExit("this installation has no native kernels")
    native.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    print(heading(f"{native.level()}, {options.threads} threads", options.dtype))
    print("microseconds a call")
    print(row(HEAD, WIDTHS))
    with torch.inference_mode():
        callings = {
            name: measure((ours, ours))[0]
            for name, (ours, _) in make_pairs(native, 0, dtype).items()
        }
        for rows in map(int, options.rows.split(",")):
            for name, pair in make_pairs(native, rows, dtype).items():
                ours, theirs = measure(pair)
                times = (f"{1e6 * t:.1f}" for t in (ours, callings[name], theirs))
                print(row((name, str(rows), *times, f"{theirs / ours:.2f}"), WIDTHS))


if __name__ == "__main__":
    main()
