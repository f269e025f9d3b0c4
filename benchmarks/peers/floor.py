"""Floor: how fast this machine multiplies, and what that and its memory allow a workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.peers.width import Weights, Width
from benchmarks.peers.workload import Workload
from engine.api.telemetry import StepCost
from engine.batch.plan import Row
from engine.batch.shape import ModelShape

_SIZES = (1024, 2048, 4096)
_TIMES = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """The measured rates of the machine.

    Attributes:
        matrix_rate: floating-point operations a second of matrix products.
        integer_rate: operations a second of products of 8-bit integers, by which engines multiply
            weights that are quantized if that is faster.
    """

    matrix_rate: float
    integer_rate: float

    @classmethod
    def measure(cls, dtype: torch.dtype) -> Machine:
        """Measure it now.

        Args:
            dtype: of the products.
        """
        return cls(_matrix_rate(dtype), _integer_rate())

    @classmethod
    def best(cls, machines: Iterable[Machine]) -> Machine:
        """The highest rates that were seen, for disturbances only make a measurement slower."""
        machines = tuple(machines)
        return cls(
            max(machine.matrix_rate for machine in machines),
            max(machine.integer_rate for machine in machines),
        )

    def rate(self, width: Width) -> float:
        """Operations a second at which weights of a width are multiplied at most."""
        return max(self.matrix_rate, self.integer_rate) if width.is_quantized else self.matrix_rate

    def seconds(self, cost: StepCost, width: Width, bandwidth: float) -> float:
        """The least time of a step, which reads and multiplies at the same time.

        Args:
            bandwidth: bytes a second that all threads together read.
        """
        return max(cost.bytes / bandwidth, cost.flops / self.rate(width))


def decode_cost(shape: ModelShape, workload: Workload, weights: Weights) -> StepCost:
    """The cost of a step that decodes one token of every sequence, half-way through the outputs."""
    half = workload.output_tokens // 2
    cost = shape.cost(
        Row(seq, len(prompt) + half, 1, (), True, False)
        for seq, prompt in enumerate(workload.prompts)
    )
    return replace(cost, bytes=cost.bytes - shape.weight_bytes + weights.nbytes)


def prefill_cost(shape: ModelShape, workload: Workload) -> StepCost:
    """The cost of all prompts, with nothing cached."""
    return shape.cost(
        Row(seq, 0, len(prompt), (), True, True) for seq, prompt in enumerate(workload.prompts)
    )


def _matrix_rate(dtype: torch.dtype) -> float:
    """The rate of torch's products, for which oneDNN computes them."""

    def product(size: int) -> Callable[[], Any]:
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        return lambda: a @ b

    return _best_rate(product)


def _integer_rate() -> float:
    """The rate of oneDNN's products of unsigned with signed integers, which is how its kernels for
    quantized layers multiply. Those of torch's own `_int_mm` reach a tenth of it."""

    def product(size: int) -> Callable[[], Any]:
        x = torch.randint(0, 127, (size, size), dtype=torch.uint8)
        weights = torch.randint(-64, 64, (size, size), dtype=torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(weights, [size, size])
        scales, zeros = torch.ones(size), torch.zeros(size, dtype=torch.int32)
        output: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
        return lambda: torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, scales, zeros, *output)

    return _best_rate(product)


def _best_rate(product: Callable[[int], Callable[[], Any]]) -> float:
    """The rate of the best of several sizes of square products.

    Args:
        product: prepares a product of that size, and returns what computes it.
    """
    best = 0.0
    for size in _SIZES:
        multiply = product(size)
        for _ in range(_TIMES):
            start = time.perf_counter()
            multiply()
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
