"""Refusals of the kernels' attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.api.errors import ModelError
from engine.model.attention.cpu_backend import CpuAttention
from engine.native import kernels
from tests.engine.model.attention.support import SMALL

native = kernels()


@pytest.mark.needs("avx2")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float16}, "do not compute in torch.float16"),
        ({"block_size": 8}, "take blocks of 16, not 8"),
        ({"device": torch.device("meta")}, "run on the CPU, not on meta"),
    ],
)
def test_the_kernels_refuse_what_they_cannot_hold(changes: dict[str, Any], reason: str) -> None:
    assert CpuAttention.why_not(SMALL) == ""
    with pytest.raises(ModelError, match=reason):
        CpuAttention().storage(replace(SMALL, **changes))


def test_without_kernels_their_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.attention.cpu_backend.kernels", lambda: None)
    with pytest.raises(ModelError, match="no native kernels"):
        CpuAttention().storage(SMALL)
