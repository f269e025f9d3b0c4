"""A stand-in for `pynvml`: the driver of a machine that is described here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest


class NVMLError(Exception):
    """Any error of NVML."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG instance of one.

    Attributes:
        silent: the functions of NVML that it does not answer.
    """

    uuid: str
    name: str = "NVIDIA H100"
    used: int = 31
    total: int = 80
    instances: tuple[Gpu, ...] = ()
    silent: tuple[str, ...] = ()


def fake_nvml(gpus: Sequence[Gpu] = (Gpu("GPU-1"),), **changes: Any) -> SimpleNamespace:
    """The driver of a machine with these GPUs, which are their own handles."""

    def instance(gpu: Gpu, place: int) -> Gpu:
        # As on a GPU that could be cut into more parts than it is.
        return gpu.instances[place] if place < len(gpu.instances) else refuse()

    of_gpus = {
        "nvmlDeviceGetName": lambda gpu: gpu.name,
        "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=87),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(
            used=gpu.used, total=gpu.total, free=gpu.total - gpu.used
        ),
        "nvmlDeviceGetPowerUsage": lambda gpu: 312_000,
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 61,
        "nvmlDeviceGetClockInfo": lambda gpu, kind: 1980,
        "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7 if gpu.instances else 0,
        "nvmlDeviceGetMigDeviceHandleByIndex": instance,
    }
    calls: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: gpus[index],
        **{name: _unless_silent(name, call) for name, call in of_gpus.items()},
    }
    return SimpleNamespace(
        NVMLError=NVMLError, NVML_TEMPERATURE_GPU=0, NVML_CLOCK_SM=1, **(calls | changes)
    )


def install(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu, **changes: Any) -> None:
    """Give the machine these GPUs for a test."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(gpus, **changes))


def refuse(*_: object) -> Any:
    raise NVMLError("Not Supported")


def _unless_silent(name: str, call: Any) -> Any:
    return lambda gpu, *rest: refuse() if name in gpu.silent else call(gpu, *rest)
