"""Torch's libraries, loaded before it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
from app.process.serving import preload_torch
preload_torch()
mapped = open("/proc/self/maps").read()
assert "torch" not in __import__("sys").modules
assert "libtorch_cpu.so" in mapped, "it is not loaded"
import torch
assert torch.ones(2).sum().item() == 2.0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there is it done")
def test_they_are_there_before_the_import_which_takes_them() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)
