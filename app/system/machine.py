"""Machine: this computer's hardware, from the system and NVIDIA's driver; torch is not imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from engine.model.machine import host
from engine.model.machine.driver import Driver, visible_gpus
from engine.native import kernels, why_not

CPU_INFO = Path("/proc/cpuinfo")

# Instructions that decide how fast a model runs on a processor: vector width, and arithmetic with
# bfloat16 and int8. Those of x86 come first, then those of ARM.
FEATURES = (
    *(
        "avx2",
        "avx_vnni",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
    ),
    *("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one device, in bytes.

    Attributes:
        uuid: of the GPU, as NVIDIA's driver writes it; empty for the host.
    """

    name: str
    total: int
    free: int
    uuid: str = ""


def num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_features(info: Path = CPU_INFO) -> tuple[str, ...] | None:
    """Those of `FEATURES` that the processor has; None if the system does not report them."""
    try:
        text = info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            has = set(flags.split())
            return tuple(feature for feature in FEATURES if feature in has)
    return None


def host_memory() -> Memory:
    total, free = host.host_memory()
    return Memory("host", total, free)


def gpu_memory() -> tuple[Memory, ...]:
    """The memory of each NVIDIA GPU, in the driver's order; a partitioned GPU is replaced by its
    MIG instances. Empty without NVIDIA's driver."""
    driver = Driver()
    memories = []
    for handle in driver.parts():
        # A GPU without memory of its own reports none: it uses the host's.
        memory = driver.ask("nvmlDeviceGetMemoryInfo", handle) or host_memory()
        name, uuid = driver.name(handle), driver.uuid(handle)
        memories.append(Memory(name, memory.total, memory.free, uuid))
    driver.close()
    return tuple(memories)


def visible_memory() -> tuple[Memory, ...]:
    """The memory of cuda:0, cuda:1 and so on, as far as it can be determined without CUDA (see
    `visible_gpus`)."""
    gpus = gpu_memory()
    return tuple(gpus[place] for place in visible_gpus([gpu.uuid for gpu in gpus], os.environ))


def memory_of(device: str | None) -> Memory:
    """The memory that a model is loaded into.

    Args:
        device: the setting. cpu is the host; auto and None are the GPU with the most free memory,
            or the host if CUDA shows none; a device that does not exist here means the first GPU.
    """
    gpus = visible_memory()
    if device == "cpu" or not gpus:
        return host_memory()
    if device is None or device == "auto":
        return max(gpus, key=lambda gpu: gpu.free)
    named = {f"cuda:{number}": gpu for number, gpu in enumerate(gpus)}
    return named.get(device, gpus[0])


def why_not_quantized(device: str) -> str:
    """A clause that says why weights cannot be quantized; empty if there is no known reason before
    a model is loaded.

    Args:
        device: torch's name of it.

    Raises:
        InvalidConfigError: as `engine.native.kernels`.
    """
    if device != "cpu":
        return f"weights are quantized on a processor only, and the device is {device}"
    if kernels() is None:
        return f"weights are quantized for the native kernels only, and there are none: {why_not()}"
    return ""
