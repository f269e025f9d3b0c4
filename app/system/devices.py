"""Devices: reads the machine's resource use from psutil and, if there is one, NVIDIA's driver."""

from __future__ import annotations

import time
from typing import Any

import psutil

from app.system.machine import num_cores
from engine.model.machine.driver import Driver
from engine.model.machine.host import host_memory
from widgets.panels.device_panel import DeviceReadings, GpuReading


class Devices:
    """Reads the machine. A read takes under 1 ms, or a few with GPUs, so it belongs on threads
    other than the event loop's."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpu_before = self._cpu_seconds(), time.monotonic()
        self._driver = Driver()

    def read(
        self, *, gpu_uuid: str = "", loop_lag: float | None = None, frames: float | None = None
    ) -> DeviceReadings:
        """The resource use since the last read.

        Args:
            gpu_uuid: the model's GPU or MIG instance; empty if it uses none. If it is an instance
                of a GPU, that GPU is read as this instance.
            loop_lag, frames: in seconds and in repaints a second; they are passed through.
        """
        spent, now = self._cpu_seconds(), time.monotonic()
        spent_before, before = self._cpu_before
        self._cpu_before = spent, now
        memory = host_memory()
        return DeviceReadings(
            cpu=max(spent - spent_before, 0.0) / max(now - before, 1e-3),
            cores=num_cores(),
            rss=self._process.memory_info().rss,
            memory_used=memory.total - memory.free,
            memory_total=memory.total,
            gpus=tuple(self._read_gpu(gpu, gpu_uuid) for gpu in self._driver.gpus),
            loop_lag=loop_lag,
            frames=frames,
        )

    def close(self) -> None:
        self._driver.close()

    def _cpu_seconds(self) -> float:
        """Seconds of processor time that this process has used."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _read_gpu(self, gpu: Any, wanted: str) -> GpuReading:
        driver, part = self._driver, gpu
        if wanted.startswith("MIG-"):
            part = next((x for x in driver.instances(gpu) if driver.uuid(x) == wanted), gpu)
        # The chip has one temperature and one power supply, which its instances do not report.
        power = driver.ask("nvmlDeviceGetPowerUsage", gpu)
        sensor, clock = driver.constant("NVML_TEMPERATURE_GPU"), driver.constant("NVML_CLOCK_SM")
        utilization = driver.ask("nvmlDeviceGetUtilizationRates", part)
        memory = driver.ask("nvmlDeviceGetMemoryInfo", part)
        return GpuReading(
            name=driver.name(part),
            uuid=driver.uuid(part),
            utilization=None if utilization is None else utilization.gpu / 100,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            power=None if power is None else power / 1000,
            temperature=driver.ask("nvmlDeviceGetTemperature", gpu, sensor),
            clock=driver.ask("nvmlDeviceGetClockInfo", gpu, clock),
        )
