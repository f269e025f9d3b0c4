"""Devices: where a model runs, the type of its numbers, and the free memory there."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch

from engine.api.config import DTYPES, EngineConfig
from engine.api.errors import DeviceLostError, InvalidConfigError, cause_of
from engine.cache.host_store import HostMemoryError
from engine.model.machine.driver import VARIABLE, Driver, visible_gpus
from engine.model.machine.host import host_memory
from engine.model.machine.memory import GPU_SHARE, HOST_SHARE
from engine.native import kernels

logger = logging.getLogger(__name__)

_Runner = TypeVar("_Runner")

_ARCH = re.compile(r"(sm|compute)_([0-9]+)([af]?)")
# The CUDA version of PyPI's torch, the oldest GPU that it supports (Turing), and the older CUDA
# version for which each supported torch has a build, which covers Maxwell to Hopper.
_NEWEST_MAJOR, _LEAST_OF_NEWEST, _LEGACY_MAJOR = 13, (7, 5), 12
# torch.device is not used to parse a name: it stores a number in 8 bits, and so takes cuda:255 for
# the current GPU and cuda:1000 for number -24.
_GPU = re.compile(r"cuda(?::(0|[1-9][0-9]{0,3}))?")


def pick_device(name: str | None) -> torch.device:
    """The device to run on. None or `auto` is the working GPU with the most free memory, else the
    host, in which case the log says why.

    Raises:
        InvalidConfigError: there is no such device, its kind is not supported, or torch has no
            kernels for it.
    """
    if name is None or name == "auto":
        device, reason = pick_auto()
        if reason:
            logger.warning("the processor computes, although there is a GPU: %s", reason)
        return device
    if name == "cpu":
        return torch.device("cpu")
    gpu = _GPU.fullmatch(name)
    if gpu is None:
        raise InvalidConfigError(
            f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N", "device"
        )
    index, gpus = int(gpu[1] or 0), _num_gpus()
    if index >= gpus:
        last = f" to cuda:{gpus - 1}" if gpus > 1 else ""
        seen = f"only cuda:0{last}" if gpus else "no GPU"
        shown = os.environ.get(VARIABLE)
        why = "" if shown is None else f"; {VARIABLE} is {shown!r}"
        if not gpus and (reason := _why_none_seen()):
            why = f": {reason}"
        raise InvalidConfigError(f"device is {name!r}, but torch sees {seen} here{why}", "device")
    device = torch.device("cuda", index)
    if why := _why_unsupported(device):
        raise InvalidConfigError(f"device is {name!r}, but {why}", "device")
    return device


def pick_auto() -> tuple[torch.device, str]:
    """The device for `auto`; and, if that is the host although there is a GPU, the reason and the
    remedy, as a clause.
    """
    reasons = []
    for gpu in _by_free_memory([torch.device("cuda", number) for number in range(_num_gpus())]):
        if not (reason := _why_unsupported(gpu) or _why_broken(gpu)):
            return gpu, ""
        reasons.append(reason)
    return torch.device("cpu"), "; ".join(reasons) or _why_none_seen()


def _num_gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _why_none_seen() -> str:
    """Why torch sees no GPU although the driver shows one to this process, and the remedy, as a
    clause; empty if it sees one, or if there is none.
    """
    driver = Driver()
    uuids = [driver.uuid(part) for part in driver.parts()]
    # 12040 is CUDA 12.4.
    version = driver.ask("nvmlSystemGetCudaDriverVersion_v2") if uuids else None
    driver.close()
    if not visible_gpus(uuids, os.environ) or torch.cuda.is_available():
        return ""
    major, minor = (_NEWEST_MAJOR, 0) if version is None else divmod(version // 10, 100)
    built = torch.version.cuda
    if built is None:
        install = _install_for(_LEGACY_MAJOR if major < _NEWEST_MAJOR else _NEWEST_MAJOR)
        return f"torch {torch.__version__} is a build without CUDA; install one with it: {install}"
    if major < int(built.partition(".")[0]):
        older = f", or install a build for CUDA {major}: {_install_for(major)}"
        return (
            f"NVIDIA's driver knows CUDA up to {major}.{minor}, and torch "
            f"{torch.__version__} is built for CUDA {built}; update the driver"
            f"{older if major == _LEGACY_MAJOR else ''}"
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:
        return f"torch {torch.__version__} cannot start CUDA: {cause_of(error)}"
    return f"torch {torch.__version__} sees none"


def _by_free_memory(gpus: list[torch.device]) -> list[torch.device]:
    """Sort GPUs by free memory, most first; those that the driver does not report come last, and
    equal ones in CUDA's order.
    """
    if len(gpus) < 2:
        return gpus
    # This uses the driver, because CUDA would create a context of some 400 MB on each GPU.
    driver = Driver()
    parts = {driver.uuid(part): part for part in driver.parts()}
    memory = {uuid: driver.ask("nvmlDeviceGetMemoryInfo", part) for uuid, part in parts.items()}
    driver.close()

    def free(gpu: torch.device) -> int:
        known = memory.get(gpu_uuid(gpu))
        return 0 if known is None else int(known.free)

    return sorted(gpus, key=free, reverse=True)


def _why_unsupported(gpu: torch.device) -> str:
    """Why this torch does not support a GPU, and the remedy, as a clause; empty if it does."""
    made_for = torch.cuda.get_arch_list()
    major, minor = torch.cuda.get_device_capability(gpu)
    if torch.version.cuda is None or not made_for:  # AMD's names have no numbers
        return ""
    for kind, digits, suffix in (one.groups() for one in map(_ARCH.fullmatch, made_for) if one):
        known = divmod(int(digits), 10)
        is_same = known == (major, minor)
        if suffix:
            runs = is_same or (suffix == "f" and known[0] == major and known[1] <= minor)
        elif kind == "sm":
            runs = known[0] == major and known[1] <= minor
        else:
            runs = known <= (major, minor)
        if runs:
            return ""
    install = _install_for(_LEGACY_MAJOR if (major, minor) < _LEAST_OF_NEWEST else _NEWEST_MAJOR)
    return (
        f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(gpu)} "
        f"(sm_{major}{minor}), only for {', '.join(made_for)}; install a build that has: {install}"
    )


def _why_broken(gpu: torch.device) -> str:
    """Why a GPU fails at the simplest computation, as a clause; empty if it works."""
    try:
        torch.ones(1, device=gpu).sum().item()
    except Exception as error:
        # If memory is short, the load reports it with all the numbers.
        return "" if is_out_of_memory(error) else f"{gpu} does not compute: {cause_of(error)}"
    return ""


def _install_for(major: int) -> str:
    """The command that installs a torch for a major version of CUDA."""
    index = "" if major == _NEWEST_MAJOR else " --index-url https://download.pytorch.org/whl/cu126"
    return f"pip install --force-reinstall torch{index}"


def use_device(device: torch.device) -> None:
    """Make this the default device of this thread, also for kernel launches."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def pick_dtype(name: str | None, registered: str, stored: str, device: torch.device) -> torch.dtype:
    """The type in which to load weights.

    A type named by the user is used as it is. Any other type that the device does not compute at
    full speed is replaced by float32.

    Args:
        name: the user's choice; None or `auto` leaves it to the registry entry.
        registered: the registry entry's choice. `auto` is the stored type on a GPU. On a host it is
            always bfloat16, because each token then reads half the bytes. Our kernels compute it at
            full speed on every host that they run on.
        stored: the type that the weights are stored in.

    Raises:
        InvalidConfigError: `name` is not a supported type.
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
    """The type in which a model's own modules compute while it is converted to a program of
    kernels.

    Without instructions for bfloat16, torch multiplies at 1 GFLOP a second in it (AVX2 alone), so
    float32 is used there.
    """
    if device.type != "cpu" or dtype != torch.bfloat16 or _torch_has_bfloat16():
        return dtype
    return torch.float32


def gpu_uuid(device: torch.device) -> str:
    """The UUID of the GPU or MIG instance, as NVIDIA's driver writes it; empty for a host.

    torch only has the hexadecimal digits. The driver (NVML's `nvmlDeviceGetUUID`) prefixes them
    with the kind of device, and CUDA names an instance with its profile: "NVIDIA A100-SXM4-40GB MIG
    1g.5gb".
    """
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{properties.uuid}"


def free_memory(device: torch.device) -> int:
    """Bytes available on the device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch holds unused, from a previous model, is available too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return host_memory().free


def default_share(device: torch.device) -> float:
    """Share of the free memory for a model with its cache and its largest step."""
    return GPU_SHARE if device.type == "cuda" else HOST_SHARE


def with_swap(
    make: Callable[[EngineConfig], _Runner], envelope: EngineConfig, *, is_asked: bool
) -> tuple[_Runner, EngineConfig]:
    """Make a runner; returns it with its envelope. If host memory for swapping cannot be allocated
    and was not requested, the runner does without: a system may refuse to pin memory that is free.

    Raises:
        HostMemoryError: it was requested.
    """
    try:
        return make(envelope), envelope
    except HostMemoryError as error:
        if is_asked:
            raise
        logger.warning("preempted requests are computed again, and not swapped: %s", error.message)
    # Outside the except block, the error no longer holds the pool through its frames.
    release_pinned()
    without = replace(envelope, num_host_blocks=0)
    return make(without), without


def release_pinned() -> None:
    """Free the pinned memory that torch caches. The oldest supported torch cannot do it."""
    if not torch.cuda.is_available():
        return
    if (empty := getattr(torch.accelerator.memory, "empty_host_cache", None)) is not None:
        empty()


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error)


@contextmanager
def noticing_loss(device: torch.device) -> Iterator[None]:
    """Turn an error inside into a `DeviceLostError`, if the device is lost.

    After an illegal access, or when a GPU has left its bus, every later CUDA call in this process
    fails. Only a call with no other reason to fail shows this: torch raises AcceleratorError for
    other errors too, and Triton raises RuntimeError for all.

    Raises:
        DeviceLostError: the device is lost; the message has the original error.
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
        # torch.cuda.is_bf16_supported would test the current device, not this one.
        capable = torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)
        return dtype == "float16" or bool(capable)
    # float16 is slow on every host.
    return dtype == "bfloat16" and (kernels() is not None or _torch_has_bfloat16())


def _torch_has_bfloat16() -> bool:
    """Whether torch multiplies bfloat16 at full speed on this host; otherwise it emulates it,
    slower than float32.
    """
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("bf16"))
