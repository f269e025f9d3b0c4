"""Packing: matrices as quantized checkpoints store them, and the numbers that they then stand for.

Each function takes the matrix of a product, [outputs, inputs] in float32, and gives what is stored
by the ends of the tensors' names, and the matrix that this stands for. Scales are powers of two, so
that all but those of NF4 are exact in bfloat16 too, whatever type a reader computes them in; a test
that is to see in which type that is asks for others (`scaled`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

Packed = tuple[dict[str, Tensor], Tensor]
Packer = Callable[[Tensor], Packed]
Scaled = Callable[[Tensor], Tensor]
"""The scales that are stored for those that would be best."""

_FP8, _FP8_MOST = torch.float8_e4m3fn, 448.0
_FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_FP4_MOST = 6.0
# Quantiles of a normal distribution (QLoRA, 2023, appendix E).
_NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
    ]
)
_NF4_BLOCK, _NF4_NESTED_BLOCK = 64, 256
# The order in which AWQ puts eight numbers of 4 bits into a word, from its lowest bits on.
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def power(scale: Tensor) -> Tensor:
    """The powers of two that are next above."""
    return torch.exp2(scale.clamp_min(2.0**-20).log2().ceil())


def fp8_blocks(matrix: Tensor, side: int = 128, scaled: Scaled = power) -> Packed:
    """DeepSeek V3: FP8 with a scale for each square of 128 by 128."""
    outputs, inputs = matrix.shape
    padded = functional.pad(matrix, (0, -inputs % side, 0, -outputs % side))
    squares = _split(_split(padded, 0, side), 2, side)
    scale = scaled(squares.abs().amax((1, 3)) / _FP8_MOST)
    spread = scale.repeat_interleave(side, 0).repeat_interleave(side, 1)[:outputs, :inputs]
    stored = (matrix / spread).to(_FP8)
    return {"weight": stored, "weight_scale_inv": scale}, stored.float() * spread


def fp8_channels(matrix: Tensor) -> Packed:
    """compressed-tensors: FP8 with a scale for each output."""
    scale = power(matrix.abs().amax(1, keepdim=True) / _FP8_MOST)
    stored = (matrix / scale).to(_FP8)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale


def int4_groups(matrix: Tensor, group: int = 32) -> Packed:
    """compressed-tensors: symmetric numbers of 4 bits in groups of 32 inputs."""
    values, scale, plain = _int4(matrix, group)
    parts = {
        "weight_packed": _words(values + 8),
        "weight_scale": scale,
        "weight_shape": torch.tensor(matrix.shape),
    }
    return parts, plain


def gptq(
    matrix: Tensor,
    group: int = 128,
    *,
    bits: int = 4,
    less: int = 1,
    by_activation: bool = False,
    is_symmetric: bool = False,
    scaled: Scaled = power,
) -> Packed:
    """GPTQ: words of neighbouring inputs.

    Args:
        is_symmetric: whether all zeros are the middle of the codes.
        less: what zeros are stored less than they are: 1 in the format's first version, then 0.
        by_activation: whether groups hold inputs from everywhere, as they do when the inputs with
            the largest activations come first.
    """
    inputs = matrix.shape[1]
    order = torch.arange(inputs)
    if by_activation:
        order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    back = torch.argsort(order)
    values, zero, scale, plain = _unsigned(matrix[:, order], group, bits, scaled, is_symmetric)
    parts = {
        "qweight": _words(values[:, back], bits).T.contiguous(),
        "qzeros": _words(zero.T - less, bits),
        "scales": scale.T.contiguous().half(),
        "g_idx": (back // group).int(),
    }
    return parts, plain[:, back]


def awq(matrix: Tensor, group: int = 128, scaled: Scaled = power) -> Packed:
    """AWQ (`gemm`): words of eight outputs in an order of its own."""
    values, zero, scale, plain = _unsigned(matrix, group, 4, scaled)
    parts = {
        "qweight": _words(_awq_ordered(values.T)),
        "qzeros": _words(_awq_ordered(zero.T)),
        "scales": scale.T.contiguous().half(),
    }
    return parts, plain


def nvfp4(matrix: Tensor) -> Packed:
    """compressed-tensors: FP4 in groups of 16 with FP8 scales, which a number for all divides."""
    stored, scale, plain = _fp4_groups(matrix)
    parts = {
        "weight_packed": stored,
        "weight_scale": (scale * 4).to(_FP8),
        "weight_global_scale": torch.tensor([4.0]),
    }
    return parts, plain


def modelopt_nvfp4(matrix: Tensor) -> Packed:
    """ModelOpt: as NVFP4 elsewhere, under other names, and a number for all multiplies."""
    stored, scale, plain = _fp4_groups(matrix)
    parts = {
        "weight": stored,
        "weight_scale": (scale * 4).to(_FP8),
        "weight_scale_2": torch.tensor(0.25),
        "input_scale": torch.tensor(1.0),
    }
    return parts, plain


def nf4(matrix: Tensor) -> Packed:
    """bitsandbytes: 4 bits in blocks of 64 numbers, whose scales are quantized in turn."""
    blocks = matrix.reshape(-1, _NF4_BLOCK)
    absmax = power(blocks.abs().amax(1))
    codes = (blocks[..., None] / absmax[:, None, None] - _NF4).abs().argmin(-1)
    plain = (_NF4[codes] * absmax[:, None]).reshape(matrix.shape)
    pairs = codes.reshape(-1, 2).to(torch.uint8)
    # A scale is looked up in a table of 256 numbers, times one number for 256 of them, plus one.
    table = torch.zeros(256)
    distinct = torch.tensor(sorted(set(absmax.tolist())))
    table[: len(distinct)] = distinct
    state = {
        "quant_type": "nf4",
        "blocksize": _NF4_BLOCK,
        "dtype": "float32",
        "shape": list(matrix.shape),
        "nested_blocksize": _NF4_NESTED_BLOCK,
        "nested_dtype": "float32",
        "nested_offset": 0.0,
    }
    parts = {
        "weight": (pairs[:, :1] << 4) | pairs[:, 1:],
        "weight.absmax": torch.searchsorted(distinct, absmax).to(torch.uint8),
        "weight.quant_map": _NF4.clone(),
        "weight.nested_absmax": torch.ones(-(-len(absmax) // _NF4_NESTED_BLOCK)),
        "weight.nested_quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": _bytes(state),
    }
    return parts, plain


def int8_rows(matrix: Tensor) -> Packed:
    """bitsandbytes: 8 bits, with the largest number of each output."""
    most = power(matrix.abs().amax(1)) * 127 / 128
    stored = (matrix * 127 / most[:, None]).round().clamp(-127, 127).to(torch.int8)
    parts = {"weight": stored, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, stored.float() * most[:, None] / 127


def mxfp4(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """gpt-oss: FP4 in groups of 32 with exponents as scales.

    Args:
        matrices: [experts, inputs, outputs], as the model has them.

    Returns:
        Blocks [experts, outputs, groups, 16], scales [experts, outputs, groups], and the matrices
        that they stand for.
    """
    groups = _split(matrices.transpose(1, 2), 2, 32)
    scale = power(groups.abs().amax(-1) / _FP4_MOST)
    stored, values = _fp4(groups / scale[..., None])
    plain = (values * scale[..., None]).flatten(2).transpose(1, 2).contiguous()
    return stored, (scale.log2().round() + 127).to(torch.uint8), plain


def _split(tensor: Tensor, axis: int, count: int) -> Tensor:
    """An axis as one of groups and one of `count` in each."""
    sides = tensor.shape
    return tensor.reshape(*sides[:axis], sides[axis] // count, count, *sides[axis + 1 :])


def _int4(matrix: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers from -8 to 7, the scale of each group of inputs, and what they stand for."""
    scale = power(_most(matrix.abs(), group) / 7)
    spread = scale.repeat_interleave(group, 1)
    values = (matrix / spread).round().clamp(-8, 7)
    return values, scale, values * spread


def _unsigned(
    matrix: Tensor, group: int, bits: int, scaled: Scaled, is_symmetric: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers without a sign, zero and scale of each group of inputs, and what they stand for, as
    it is in the scales' own type, float16."""
    most = (1 << bits) - 1
    least = -_most(matrix.abs(), group) if is_symmetric else _split(matrix, 1, group).amin(-1)
    scale = scaled((_most(matrix.abs() if is_symmetric else matrix, group) - least) / most)
    zero = (-least / scale).round().clamp(1, most)
    spread, offset = (one.repeat_interleave(group, 1) for one in (scale, zero))
    values = (matrix / spread + offset).round().clamp(0, most)
    return values, zero, scale, ((values - offset).half() * spread.half()).float()


def _most(matrix: Tensor, group: int) -> Tensor:
    return _split(matrix, 1, group).amax(-1)


def _words(values: Tensor, bits: int = 4) -> Tensor:
    """Words of 32 bits out of as many numbers in a row as fit, the first in the lowest."""
    count = 32 // bits
    several = _split(values.long(), 1, count)
    words = (several << (bits * torch.arange(count))).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def _awq_ordered(values: Tensor) -> Tensor:
    return _split(values, 1, 8)[..., _AWQ_ORDER].flatten(1)


def _fp4_groups(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bytes [outputs, inputs / 2], a scale for each 16 inputs, and what they stand for."""
    scale = power(_most(matrix.abs(), 16) / _FP4_MOST)
    spread = scale.repeat_interleave(16, 1)
    stored, values = _fp4(matrix / spread)
    return stored, scale, values * spread


def _fp4(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes of two numbers each, the first in the low bits, and the numbers that they stand for."""
    codes = (scaled.abs()[..., None] - _FP4).abs().argmin(-1)
    values = torch.where(scaled < 0, -_FP4[codes], _FP4[codes])
    signed = (codes | ((scaled < 0).long() << 3)).to(torch.uint8)
    return signed[..., ::2] | (signed[..., 1::2] << 4), values


def _bytes(state: Mapping[str, Any]) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
