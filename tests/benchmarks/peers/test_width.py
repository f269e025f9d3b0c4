"""The size of weights in a width, and the peers compared in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.peers.peers import contenders
from benchmarks.peers.width import WIDTHS, Weights


@pytest.mark.parametrize(
    ("width", "nbytes"),
    [
        ("bf16", 2 * 10 * 96),
        ("int8", 10 * 96 + 2 * 10),  # a scale a row
        ("int4", 10 * 96 // 2 + 2 * 20),  # two groups a row, the second of 32
    ],
)
def test_matrices_are_quantized_and_norms_are_not(width: str, nbytes: int, tmp_path: Path) -> None:
    tensors = {"q.weight": torch.zeros(10, 96), "norm.weight": torch.zeros(96)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert Weights.of(tmp_path, WIDTHS[width]) == Weights(WIDTHS[width], nbytes + 2 * 96)


def test_each_peer_has_forms_of_its_own() -> None:
    found = contenders(["batchdeck", "generate", "openvino", "llama.cpp"], ["bf16", "int4"])
    assert [name for name in found if not name.startswith("batchdeck int")] == [
        *("batchdeck bf16", "generate bf16", "openvino bf16", "llama.cpp bf16"),
        *("openvino int4", "llama.cpp Q4_0", "llama.cpp Q4_K_M"),
    ]
