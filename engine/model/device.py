"""Where a model runs: device, type of its numbers, and the memory that is free there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from engine.api.config import DTYPES
from engine.api.errors import DeviceLostError, InvalidConfigError, cause_of
from engine.model.memory import GPU_SHARE, HOST_SHARE
from engine.native import kernels

# torch.device is not asked what a name means: it keeps a number in 8 bits, and so takes cuda:255
# for the current GPU and cuda:1000 for number -24.
_GPU = re.compile(r"cuda(?::(0|[1-9][0-9]{0,3}))?")


def pick_device(name: str | None) -> torch.device:
    """The device to run on; None or `auto` is the first GPU, else the host.

    Raises:
        InvalidConfigError: there is no such device, or its kind is not supported.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None or name == "auto":
        return torch.device("cuda", 0) if gpus else torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    gpu = _GPU.fullmatch(name)
    if gpu is None:
        raise InvalidConfigError(
            f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N", "device"
        )
    index = int(gpu[1] or 0)
    if index >= gpus:
        last = f" to cuda:{gpus - 1}" if gpus > 1 else ""
        seen = f"only cuda:0{last}" if gpus else "no GPU"
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if shown is None else f"; CUDA_VISIBLE_DEVICES is {shown!r}"
        raise InvalidConfigError(f"device is {name!r}, but torch sees {seen} here{why}", "device")
    return torch.device("cuda", index)


def use_device(device: torch.device) -> None:
    """Let this thread's work that names no device go to this one, as kernels' launches do."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def pick_dtype(name: str | None, registered: str, stored: str, device: torch.device) -> torch.dtype:
    """The type to load weights as.

    What the user names is taken as it is. Any other type that the device does not compute at full
    speed gives way to float32.

    Args:
        name: what the user asked for; None or `auto` leaves it to the registry entry.
        registered: what the registry entry asks for. `auto` is the stored type on a GPU. On a host
            it is bfloat16, whatever is stored, because each token then reads half the bytes. Our
            kernels compute it at full speed on every host that they run on.
        stored: the type that the weights are stored in.

    Raises:
        InvalidConfigError: `name` is no type that is supported.
    """
    if name is not None and name not in DTYPES:
        raise InvalidConfigError(f"dtype is {name!r}; allowed are {', '.join(DTYPES)}", "dtype")
    if name is not None and name != "auto":
        return getattr(torch, name)  # type: ignore[no-any-return]
    preferred = registered
    if preferred == "auto":
        preferred = "bfloat16" if device.type == "cpu" else stored
    return getattr(torch, preferred) if _is_fast(preferred, device) else torch.float32


def loading_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type in which a model's own modules compute while it is made a program of kernels.

    Without instructions for bfloat16 torch multiplies 1 GFLOP a second in it (AVX2 alone), so that
    it has to be float32 there.
    """
    if device.type != "cpu" or dtype != torch.bfloat16 or _torch_has_bfloat16():
        return dtype
    return torch.float32


def gpu_uuid(device: torch.device) -> str:
    """The UUID of the GPU, or of the MIG instance, as NVIDIA's driver writes it; empty for a host.

    torch gives the hexadecimal digits alone. The driver (NVML's `nvmlDeviceGetUUID`) writes before
    them which of the two it is, and CUDA names an instance with its profile: "NVIDIA A100-SXM4-40GB
    MIG 1g.5gb".
    """
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{properties.uuid}"


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on the device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds unused, from a model before this one, can be had too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available)


def default_share(device: torch.device) -> float:
    """Share of the free memory that a model may take with its cache and its largest step."""
    return GPU_SHARE if device.type == "cuda" else HOST_SHARE


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error)


@contextmanager
def noticing_loss(device: torch.device) -> Iterator[None]:
    """Turn what is raised within into a `DeviceLostError`, if the device is lost.

    After an illegal access, or when a GPU has left its bus, every later call of CUDA fails in this
    process. Which errors are of that kind shows by a call that has nothing else to fail at: torch
    raises AcceleratorError for others, too, and Triton raises RuntimeError for all.

    Raises:
        DeviceLostError: the device is lost; the message has what was raised.
    """
    try:
        yield
    except DeviceLostError:
        raise
    except Exception as error:
        if device.type != "cpu" and _is_lost(device):
            raise DeviceLostError(
                f"{device} computes nothing any more: {cause_of(error)}"
            ) from error
        raise


def _is_lost(device: torch.device) -> bool:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.accelerator.synchronize(device)
    except RuntimeError:
        return True
    return False


def _is_fast(dtype: str, device: torch.device) -> bool:
    if dtype == "float32":
        return True
    if device.type == "cuda":
        # torch.cuda.is_bf16_supported would ask about the current device, not about this one.
        capable = torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)
        return dtype == "float16" or bool(capable)
    # float16 is slow on every host.
    return dtype == "bfloat16" and (kernels() is not None or _torch_has_bfloat16())


def _torch_has_bfloat16() -> bool:
    """Whether torch multiplies bfloat16 at full speed on this host; else it emulates that, slower
    than float32.
    """
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("bf16"))
