"""Packed matrices, unpacked again as their makers define them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.coverage import packing

INPUTS, OUTPUTS = 256, 64
SHIFTS = 4 * torch.arange(8)


@pytest.fixture
def matrix() -> Tensor:
    return torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(3))


def nibbles(words: Tensor, axis: int) -> Tensor:
    """The eight numbers of each word, in its place on an axis, the lowest first."""
    apart = (
        words.unsqueeze(axis + 1) >> SHIFTS.view(*(-1 if i == axis + 1 else 1 for i in range(3)))
    ) & 15
    return apart.flatten(axis, axis + 1)


def test_gptq_packs_inputs_and_stores_zeros_less_one(matrix: Tensor) -> None:
    parts, plain = packing.gptq(matrix)
    group = parts["g_idx"].long()
    zeros, scales = nibbles(parts["qzeros"], 1) + 1, parts["scales"].float()
    values = nibbles(parts["qweight"], 0) - zeros[group]
    assert torch.equal((values * scales[group]).T, plain)


def test_awq_packs_outputs_in_its_own_order(matrix: Tensor) -> None:
    parts, plain = packing.awq(matrix)
    order = torch.arange(OUTPUTS).view(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].flatten()
    group = torch.arange(INPUTS) // 128
    values = nibbles(parts["qweight"], 1)[:, order] - nibbles(parts["qzeros"], 1)[group][:, order]
    assert torch.equal((values * parts["scales"].float()[group]).T, plain)


def test_mxfp4_is_what_transformers_reads() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    matrices = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(3))
    blocks, scales, plain = packing.mxfp4(matrices)
    assert torch.equal(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32), plain)


@pytest.mark.parametrize(
    ("pack", "error"),
    [
        *((packing.fp8_blocks, 0.03), (packing.fp8_channels, 0.03), (packing.int4_groups, 0.16)),
        *((packing.gptq, 0.18), (packing.awq, 0.17), (packing.nvfp4, 0.13), (packing.nf4, 0.13)),
        *((packing.modelopt_nvfp4, 0.13), (packing.int8_rows, 0.012)),
    ],
)
def test_what_is_stored_stands_for_nearly_the_same(
    pack: Callable[[Tensor], tuple[object, Tensor]], error: float, matrix: Tensor
) -> None:
    _, plain = pack(matrix)
    assert 0.2 * error < (plain - matrix).norm() / matrix.norm() < error
