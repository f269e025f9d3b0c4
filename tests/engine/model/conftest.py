"""What holds for the tests that compute."""

from __future__ import annotations

import pytest
import torch

from engine.native import kernels

# Tiny operators gain nothing from a second thread and lose much where the cores are shared.
torch.set_num_threads(1)


@pytest.fixture(params=["torch", "cpu"] if kernels() else ["torch"])
def backend(request: pytest.FixtureRequest) -> str:
    """A test that asks for it runs with each attention backend of this machine."""
    return str(request.param)
