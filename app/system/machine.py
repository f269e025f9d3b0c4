"""Machine: what this computer has, by the system and NVIDIA's driver; torch is not imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

CPU_INFO = Path("/proc/cpuinfo")

# Instructions that decide how fast a model runs on a processor: vector width, and arithmetic with
# bfloat16 and int8. Those of x86 come first, then those of ARM.
FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one device, in bytes."""

    name: str
    total: int
    free: int


def num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_features(info: Path = CPU_INFO) -> tuple[str, ...] | None:
    """Those of `FEATURES` that the processor has; None where the system does not tell."""
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
    memory = psutil.virtual_memory()
    return Memory("host", memory.total, memory.available)


def gpu_memory() -> tuple[Memory, ...]:
    """The memory of each NVIDIA GPU; none without its driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no driver, or one that is broken
        return ()
    memories = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name, memory = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
            memories.append(Memory(str(name), memory.total, memory.free))
    except pynvml.NVMLError:
        pass  # a MIG slice may not tell its memory; the GPUs before it are kept
    finally:
        pynvml.nvmlShutdown()
    return tuple(memories)


def most_free_memory() -> int:
    """The bytes that are free where a model is loaded by default: on the GPU with most, or on the
    host if there is no GPU."""
    return max((gpu.free for gpu in gpu_memory()), default=host_memory().free)
