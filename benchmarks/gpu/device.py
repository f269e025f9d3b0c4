"""Device: times work on a GPU, and measures what it can do at most.

On a CPU everything runs under Triton's interpreter, to try a benchmark out; its times mean nothing.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# What is copied to measure: far more than a cache holds.
_COPIED_BYTES = 2 << 30
_SIDE = 8192


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a device.

    Attributes:
        copy: bytes a second that a copy moves, those read and those written both counted.
        read: bytes a second that a sum reads.
        flops: floating-point operations a second of a square product in bfloat16.
    """

    copy: float
    read: float
    flops: float


class Device:
    """A GPU, or a CPU with the interpreter."""

    def __init__(self, name: str) -> None:
        self.torch = torch.device(name)
        self.is_gpu = self.torch.type == "cuda"
        if self.is_gpu:
            torch.cuda.set_device(self.torch)

    @property
    def name(self) -> str:
        """The name of the GPU; on a CPU, a warning."""
        if self.is_gpu:
            return torch.cuda.get_device_name(self.torch)
        return "CPU with Triton's interpreter: the times mean nothing"

    def seconds(self, work: Callable[[], object], repeats: int = 20) -> float:
        """Median seconds of some work, launched over and over; the first two do not count."""
        for _ in range(2):
            work()
        if not self.is_gpu:
            times = []
            for _ in range(2):
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
            return statistics.median(times)
        events = [self._event() for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        torch.cuda.synchronize(self.torch)
        gaps: list[float] = [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
        return statistics.median(gaps) / 1e3

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """The work as a CUDA graph, so that a launch by the host is not what is measured."""
        if not self.is_gpu:
            return work
        work()
        torch.cuda.synchronize(self.torch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def limits(self) -> Limits:
        """Measure what the device can do."""
        count = _COPIED_BYTES if self.is_gpu else 1 << 20
        source = torch.zeros(count // 2, dtype=torch.bfloat16, device=self.torch)
        target = torch.empty_like(source)
        copy = 2 * source.nbytes / self.seconds(lambda: target.copy_(source))
        numbers = source.view(torch.float32)
        read = source.nbytes / self.seconds(lambda: numbers.sum())
        side = _SIDE if self.is_gpu else 64
        a, b, c = (
            torch.randn(side, side, dtype=torch.bfloat16, device=self.torch) for _ in range(3)
        )
        flops = 2 * side**3 / self.seconds(lambda: torch.mm(a, b, out=c))
        return Limits(copy, read, flops)

    def free_bytes(self) -> int:
        """Bytes that can be had, after what torch keeps for nothing was given back."""
        if not self.is_gpu:
            return 1 << 30
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.torch)[0]

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
