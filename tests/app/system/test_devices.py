from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from app.system.devices import Devices


class NVMLError(Exception):
    pass


def fake_nvml(**changes: Any) -> SimpleNamespace:
    """The driver of a machine with one GPU."""
    calls: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100",
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=31, total=80),
        "nvmlDeviceGetPowerUsage": lambda handle: 312_000,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1980,
    }
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        **{name: _named(name, call) for name, call in (calls | changes).items()},
    )


def _named(name: str, call: Any) -> Any:
    call.__name__ = name
    return call


def refuse(*_: object) -> None:
    raise NVMLError("Not Supported")


def test_a_machine_without_nvidia_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    readings = Devices().read()
    assert readings.gpus == ()
    assert readings.cores >= 1
    assert readings.rss > 1_000_000
    assert 0 < readings.memory_used < readings.memory_total


def test_a_driver_that_fails_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=lambda: refuse()))
    assert Devices().read().gpus == ()


def test_a_gpu_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    devices = Devices()
    (gpu,) = devices.read().gpus
    assert (gpu.name, gpu.utilization, gpu.memory_used, gpu.memory_total) == (
        *("NVIDIA H100", 0.87),
        *(31, 80),
    )
    assert (gpu.power, gpu.temperature, gpu.clock) == (312.0, 61, 1980)
    devices.close()
    assert devices.read().gpus == ()


def test_what_a_driver_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = fake_nvml(
        nvmlDeviceGetUtilizationRates=lambda handle: refuse(),
        nvmlDeviceGetPowerUsage=lambda handle: refuse(),
    )
    monkeypatch.setitem(sys.modules, "pynvml", silent)
    (gpu,) = Devices().read().gpus
    assert gpu.utilization is None
    assert gpu.power is None
    assert gpu.memory_used == 31


def test_cpu_is_what_this_process_spent_since_the_last_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent, now = [10.0], [100.0]
    monkeypatch.setattr(Devices, "_cpu_seconds", lambda self: spent[0])
    monkeypatch.setattr("app.system.devices.time", SimpleNamespace(monotonic=lambda: now[0]))
    devices = Devices()
    spent[0], now[0] = 12.8, 102.0
    readings = devices.read(loop_lag=0.007, frames=15.0)
    assert readings.cpu == pytest.approx(1.4)
    assert (readings.loop_lag, readings.frames) == (0.007, 15.0)
    assert devices.read().cpu == 0
