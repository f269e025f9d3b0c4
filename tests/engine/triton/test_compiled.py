"""The kernels compile for GPUs that are not here, and fit into their registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_nothing_is_spilled_and_keys_are_copied_beside_the_products(capability: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = (sys.executable, "-m", "tests.support.compiled_kernels", str(capability))
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    kernels = json.loads(result.stdout)
    assert [kernel["spilled"] for kernel in kernels.values()] == [0] * 4
    assert all(kernels[name]["copies"] for name in ("decode", "prefill", "wide decode"))
    # Three programs of four warps fit on a multiprocessor, and two of eight.
    assert kernels["decode"]["registers"] <= 168
    assert kernels["prefill"]["registers"] <= 255
    assert kernels["decode"]["shared"] <= 48 * 1024
    assert kernels["prefill"]["shared"] <= 99 * 1024
