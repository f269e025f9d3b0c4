from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from app.system.devices import Devices
from tests.support.nvml import Gpu, install, refuse


def test_a_machine_without_nvidia_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    readings = Devices().read()
    assert readings.gpus == ()
    assert readings.cores >= 1
    assert readings.rss > 1_000_000
    assert 0 < readings.memory_used < readings.memory_total


def test_a_driver_that_fails_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu("GPU-1"), nvmlInit=refuse)
    assert Devices().read().gpus == ()


def test_a_gpu_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu("GPU-1"))
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
    silent = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUUID")
    install(monkeypatch, Gpu("GPU-1", silent=silent))
    (gpu,) = Devices().read().gpus
    assert gpu.utilization is None
    assert gpu.power is None
    assert gpu.uuid == ""
    assert gpu.memory_used == 31


def test_each_gpu_is_told_with_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu("GPU-1", used=10), Gpu("GPU-2", used=20))
    gpus = Devices().read(gpu_uuid="GPU-2").gpus
    assert [(gpu.uuid, gpu.memory_used) for gpu in gpus] == [("GPU-1", 10), ("GPU-2", 20)]


def test_a_partitioned_gpu_is_read_as_the_instance_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage")
    parts = tuple(
        Gpu(f"MIG-{n}", "NVIDIA H100 MIG 1g.10gb", used=n, total=10, silent=silent) for n in (1, 2)
    )
    install(monkeypatch, Gpu("GPU-1", used=5), Gpu("GPU-2", instances=parts))
    devices = Devices()
    whole, part = devices.read(gpu_uuid="MIG-2").gpus
    assert (whole.uuid, whole.memory_used) == ("GPU-1", 5)
    assert (part.uuid, part.name) == ("MIG-2", "NVIDIA H100 MIG 1g.10gb")
    assert (part.utilization, part.memory_used, part.memory_total) == (None, 2, 10)
    assert (part.power, part.temperature) == (312.0, 61)
    for elsewhere in ("", "GPU-1", "MIG-3"):
        assert [gpu.uuid for gpu in devices.read(gpu_uuid=elsewhere).gpus] == ["GPU-1", "GPU-2"]


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
