"""Floor: how fast this machine reads and multiplies, and what that allows a workload."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from benchmarks.peers.workload import Workload
from benchmarks.smoke import read_bandwidth
from engine.api.telemetry import StepCost
from engine.batch.plan import Row
from engine.batch.shape import ModelShape

_SIZES = (1024, 2048, 4096)
_TIMES = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured of the machine.

    Attributes:
        bandwidth: bytes a second that all threads together read.
        matrix_rate: floating-point operations a second of matrix products.
    """

    bandwidth: float
    matrix_rate: float

    @classmethod
    def measure(cls, dtype: torch.dtype) -> Machine:
        """Measure it now.

        Args:
            dtype: of the products.
        """
        return cls(read_bandwidth(torch.device("cpu")), _matrix_rate(dtype))

    @classmethod
    def best(cls, machines: Iterable[Machine]) -> Machine:
        """The highest rates that were seen, for disturbances only make a measurement slower."""
        machines = tuple(machines)
        return cls(
            max(machine.bandwidth for machine in machines),
            max(machine.matrix_rate for machine in machines),
        )

    def seconds(self, cost: StepCost) -> float:
        """The least time of a step, which reads and multiplies at the same time."""
        return max(cost.bytes / self.bandwidth, cost.flops / self.matrix_rate)


def decode_cost(shape: ModelShape, workload: Workload) -> StepCost:
    """The cost of a step that decodes one token of every sequence, half-way through the outputs."""
    half = workload.output_tokens // 2
    return shape.cost(
        Row(seq, len(prompt) + half, 1, (), True, False)
        for seq, prompt in enumerate(workload.prompts)
    )


def prefill_cost(shape: ModelShape, workload: Workload) -> StepCost:
    """The cost of all prompts, with nothing cached."""
    return shape.cost(
        Row(seq, 0, len(prompt), (), True, True) for seq, prompt in enumerate(workload.prompts)
    )


def _matrix_rate(dtype: torch.dtype) -> float:
    """The rate of the best of several sizes of square products, by torch, for which oneDNN computes
    them."""
    best = 0.0
    for size in _SIZES:
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        for _ in range(_TIMES):
            start = time.perf_counter()
            a @ b
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
