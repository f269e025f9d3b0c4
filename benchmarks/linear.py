"""The product with packed weights beside torch's, at the speed of memory and of the matrix unit.

    python -m benchmarks.linear [--rows 1,8,...] [--shapes qkv,head,...] [--gigabytes N]
                                [--weights bf16|int8|int4] [--rounds N] [--threads N] [--json FILE]

The shapes are those of a Qwen2 of 387 million parameters, in bfloat16. A step reads all weights of
a model once. So a round goes through as many copies of a weight as fill `--gigabytes`, each time
with the same rows; with many rows it goes through only as many as take a tenth of a second. There
are rounds of our product, of `F.linear`, of oneDNN with weights that it has packed (which is what
`torch.compile` with freezing calls), and of a plain parallel sum over our packed weights. They come
in turn, and the median of each counts. Our weights and those of `F.linear` lie in huge pages where
the system gives them. Our product has no gate and no activation here, like the others.

GB/s count weights, ours as they are: with a scale for 128 input features (int8) or 32 (int4). `of
read` is our rate over that of the sum, and `of torch` is the time of the faster one of torch's two,
whose weights are bfloat16, over ours.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from app.process.columns import row
from app.process.console import write_json
from benchmarks.heading import heading
from engine.native import kernels

# For each name: output features and input features.
SHAPES = {
    "qkv": (1152, 896),
    "output": (896, 896),
    "gated": (9728, 896),
    "down": (896, 4864),
    "head": (32000, 896),
}
ROWS = (1, 4, 8, 16, 32, 64, 256, 2048)
# Bits of a quantized weight, and input features that share a scale.
CODINGS = {"bf16": None, "int8": (8, 128), "int4": (4, 32)}
# About as many operations as a round takes 0.1 s for.
FLOP = 2e11


@dataclass(frozen=True, slots=True)
class Result:
    """Medians for one shape and number of rows: seconds of each product, and of the sum."""

    shape: str
    n: int
    k: int
    rows: int
    our_bytes: int
    ours: float
    torch: float
    packed: float
    read: float

    @property
    def bytes(self) -> int:
        return self.n * self.k * 2

    @property
    def flop(self) -> int:
        return 2 * self.n * self.k * self.rows

    def __str__(self) -> str:
        sizes = (self.our_bytes, self.bytes, self.bytes, self.our_bytes)
        times = (self.ours, self.torch, self.packed, self.read)
        rates = [size / s / 1e9 for size, s in zip(sizes, times, strict=True)]
        speeds = [self.flop / s / 1e12 for s in (self.ours, self.torch, self.packed)]
        cells = (
            *(self.shape, str(self.k), "->", str(self.n), str(self.rows)),
            *(f"{rate:.1f}" for rate in rates),
            *(f"{speed:.3f}" for speed in speeds),
            f"{self.read / self.ours:.0%}",
            f"{min(self.torch, self.packed) / self.ours:.0%}",
        )
        return row(cells, WIDTHS)


WIDTHS = (-9, 5, 2, 5, 5, 7, 6, 6, 6, 7, 6, 6, 8, 8)
HEADS = (
    (*("",) * 5, "GB/s", *("",) * 3, "TFLOPS"),
    (
        *("shape", "k", "->", "n", "rows"),
        *("ours", "torch", "packed", "read"),
        *("ours", "torch", "packed"),
        *("of read", "of torch"),
    ),
)


def huge(copies: int, size: int) -> torch.Tensor:
    """Memory for weights, in huge pages where the system gives them."""
    native = kernels()
    assert native is not None
    memory = torch.empty(copies, size, dtype=torch.bfloat16)
    native.advise_huge(memory)
    return memory


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def quantized(weight: torch.Tensor, how: Any) -> torch.Tensor:
    """A weight as packed codes."""
    native = kernels()
    assert native is not None
    n, k = weight.shape
    scales = torch.empty(n, -(-k // how.group), dtype=torch.float16)
    packed = torch.empty(native.coded_size(n, k, how), dtype=torch.uint8)
    coded = weight.clone()
    native.quantize(coded, scales, how)
    native.pack_coded(coded, scales, None, how, packed)
    return packed


def measure(
    shape: str, row_counts: list[int], gigabytes: float, rounds: int, width: str
) -> list[Result]:
    """Measure one shape with several numbers of rows."""
    native = kernels()
    assert native is not None
    n, k = SHAPES[shape]
    copies = max(1, int(gigabytes * 1e9 / (n * k * 2)))
    weights = huge(copies, n * k).view(copies, n, k)
    weights[:] = torch.randn(n, k) / k**0.5
    if (coding := CODINGS[width]) is None:
        how = None
        packed = torch.empty(native.packed_size(n, k), dtype=torch.bfloat16)
        native.pack_linear(weights[0], packed)
    else:
        how = native.Quantization(*coding)
        packed = quantized(weights[0], how)
    ours = huge(copies, packed.nbytes // 2).view(packed.dtype)
    ours[:] = packed
    numbers = ours.view(torch.float32)
    pack = torch.ops.mkldnn._reorder_linear_weight
    multiply = torch.ops.mkldnn._linear_pointwise
    results = []
    for rows in row_counts:
        used = max(1, min(copies, int(FLOP / (2 * n * k * rows))))
        x = torch.randn(rows, k, dtype=torch.bfloat16)
        out = torch.empty(rows, n, dtype=torch.bfloat16)
        theirs = [pack(weight, rows) for weight in weights[:used]]

        def run_ours(out: torch.Tensor = out, x: torch.Tensor = x, used: int = used) -> None:
            for packed in ours[:used]:
                native.linear(out, x, packed, n, k, quantization=how)

        def run_torch(x: torch.Tensor = x, used: int = used) -> None:
            for weight in weights[:used]:
                functional.linear(x, weight)

        def run_packed(x: torch.Tensor = x, theirs: list[torch.Tensor] = theirs) -> None:
            for weight in theirs:
                multiply(x, weight, None, "none", [], "")

        contenders: tuple[Callable[[], object], ...] = (run_ours, run_torch, run_packed)
        times: list[list[float]] = [[] for _ in contenders]
        reads = []
        for _ in range(rounds + 1):
            for contender, taken in zip(contenders, times, strict=True):
                taken.append(seconds(contender) / used)
            reads.append(seconds(numbers.sum) / copies)
        # The first round only warms up.
        medians = [statistics.median(taken[1:]) for taken in (*times, reads)]
        results.append(Result(shape, n, k, rows, packed.nbytes, *medians))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--weights", default="bf16", choices=CODINGS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch has")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    native = kernels()
    if native is None:
        sys.exit("benchmarks.linear: no native kernels here")
    if options.threads:
        torch.set_num_threads(options.threads)
    native.set_threads(torch.get_num_threads())
    level = f"{native.level()}, {native.threads()} threads"
    print(heading(level, f"our weights {options.weights}", f"torch {torch.__version__}"))
    for head in HEADS:
        print(row(head, WIDTHS))
    results = []
    for name in options.shapes.split(","):
        row_counts = [int(rows) for rows in options.rows.split(",")]
        for result in measure(name, row_counts, options.gigabytes, options.rounds, options.weights):
            print(result, flush=True)
            results.append(result)
    if options.json:
        write_json({"results": [asdict(result) for result in results]}, options.json)


if __name__ == "__main__":
    main()
