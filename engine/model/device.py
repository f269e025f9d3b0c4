"""Where a model runs: device, type of its numbers, and the memory that is free there."""

from __future__ import annotations

import psutil
import torch

from engine.api.config import DTYPES
from engine.api.errors import InvalidConfigError

# Host memory is shared with whatever else runs; a GPU in a GPU box is ours.
_HOST_SHARE = 0.75
_GPU_SHARE = 0.9


def pick_device(name: str | None) -> torch.device:
    """The device to run on; None or `auto` is the first GPU, else the host.

    Raises:
        InvalidConfigError: there is no such device, or its kind is not supported.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None or name == "auto":
        return torch.device("cuda", 0) if gpus else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidConfigError(
            f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N", "device"
        )
    if device.type == "cpu":
        return torch.device("cpu")
    index = device.index or 0
    if index >= gpus:
        here = f"torch sees {gpus} CUDA devices" if gpus else "torch sees no CUDA device here"
        raise InvalidConfigError(f"device is {name!r}, but {here}", "device")
    return torch.device("cuda", index)


def pick_dtype(name: str | None, registered: str, stored: str, device: torch.device) -> torch.dtype:
    """The type to load weights as.

    What the user names is taken as it is. Any other type that the device does not compute at full
    speed gives way to float32.

    Args:
        name: what the user asked for; None or `auto` leaves it to the registry entry.
        registered: what the registry entry asks for. `auto` is the stored type on a GPU. On a host
            it is bfloat16, whatever is stored, because each token then reads half the bytes.
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


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on the device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds unused, from a model before this one, can be had too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available)


def default_share(device: torch.device) -> float:
    """Share of the free memory that a model may take with its cache and its largest step."""
    return _GPU_SHARE if device.type == "cuda" else _HOST_SHARE


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error)


def _is_fast(dtype: str, device: torch.device) -> bool:
    if dtype == "float32":
        return True
    if device.type == "cuda":
        # torch.cuda.is_bf16_supported would ask about the current device, not about this one.
        capable = torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)
        return dtype == "float16" or bool(capable)
    # Elsewhere a host emulates bfloat16, slower than float32; float16 is slow on every host.
    has = torch.cpu.get_capabilities()
    return dtype == "bfloat16" and bool(has.get("avx512_bf16") or has.get("bf16"))
