"""Devices: reads what the machine spends from psutil and, if there is one, NVIDIA's driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import psutil

from app.system.machine import num_cores
from widgets.device_panel import DeviceReadings, GpuReading

log = logging.getLogger(__name__)


class Devices:
    """Reads the machine. A read takes under 1 ms, or a few with GPUs, so it is for threads other
    than the event loop's."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu_before = self._cpu_seconds(), time.monotonic()
        self._gpus = _Gpus()

    def read(self, *, loop_lag: float | None = None, frames: float | None = None) -> DeviceReadings:
        """What the machine has spent since the last read. The arguments, in seconds and in repaints
        a second, are passed on."""
        spent, now = self._cpu_seconds(), time.monotonic()
        spent_before, before = self._cpu_before
        self._cpu_before = spent, now
        memory = psutil.virtual_memory()
        return DeviceReadings(
            cpu=max(spent - spent_before, 0.0) / max(now - before, 1e-3),
            cores=num_cores(),
            rss=self._process.memory_info().rss,
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            gpus=self._gpus.read(),
            loop_lag=loop_lag,
            frames=frames,
        )

    def close(self) -> None:
        self._gpus.close()

    def _cpu_seconds(self) -> float:
        """Seconds of processor time that this process has used."""
        times = self._process.cpu_times()
        return float(times.user + times.system)


class _Gpus:
    """NVIDIA's GPUs. There are none without NVIDIA's driver; no method raises."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # no package, no library, no driver, or one that is broken
            log.debug("no NVIDIA GPU: %s", error)
            return
        self._nvml = pynvml
        count = self._ask(pynvml.nvmlDeviceGetCount) or 0
        handles = (self._ask(pynvml.nvmlDeviceGetHandleByIndex, i) for i in range(count))
        self._handles = [handle for handle in handles if handle is not None]

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(self._read(handle) for handle in self._handles)

    def close(self) -> None:
        if self._nvml is not None:
            self._ask(self._nvml.nvmlShutdown)
            self._nvml, self._handles = None, []

    def _read(self, handle: Any) -> GpuReading:
        nvml, ask = self._nvml, self._ask
        name = ask(nvml.nvmlDeviceGetName, handle)
        utilization = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuReading(
            name=str(name or "GPU"),
            utilization=None if utilization is None else utilization.gpu / 100,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            power=None if power is None else power / 1000,
            temperature=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            clock=ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        )

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The driver's answer, or None if it has none. MIG slices and laptops do not answer all
        questions."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError as error:
            log.debug("%s: %s", question.__name__, error)
            return None
