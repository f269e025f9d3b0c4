"""Copies to a GPU come from pinned memory, so that the host need not wait for earlier work.

There is no GPU here; a device without memory stands in for one.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.model.step.sending import fetch, send


def test_a_copy_to_a_device_is_pinned_and_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[list[int]] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor.tolist())
        return tensor

    copy = Tensor.to
    waited: list[bool] = []

    def to(tensor: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        waited.append(not non_blocking)
        return copy(tensor, device)

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    sent = send(np.array([4, 5], np.int32), torch.device("meta"))
    assert (sent.device.type, sent.dtype) == ("meta", torch.int32)
    assert pinned == [[4, 5]]
    assert waited == [False]


def test_on_the_host_there_is_nothing_to_send() -> None:
    array = np.arange(3)
    sent = send(array, torch.device("cpu"))
    assert sent.data_ptr() == array.ctypes.data
    assert fetch(sent) is sent
