"""send, fetch: from the host to a device and back, without waiting for what it still does."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def send(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on the device, in the order of the current stream.

    A copy from ordinary memory would first wait for all that is on the stream. From pinned memory
    it waits for nothing; torch hands that memory out again only when the copy has been made.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(tensor: Tensor) -> Tensor:
    """A copy of a tensor on the host, which has the numbers once the device has come so far."""
    if tensor.device.type == "cpu":
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
