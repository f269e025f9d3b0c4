"""send, fetch: copy from the host to a device and back, without waiting for the device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def send(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device, in the order of the current stream.

    A copy from ordinary memory would first wait for everything on the stream. From pinned memory it
    waits for nothing; torch reuses that memory only when the copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(tensor: Tensor) -> Tensor:
    """Copy a tensor to the host, where it has its numbers once the device has got that far."""
    if tensor.device.type == "cpu":
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished all its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
