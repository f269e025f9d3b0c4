"""GGUF's blocks, unpacked to floats and packed to codes, against the gguf library."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("coded_level")

# Where a block of each type has its numbers in float16.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ2_0": (64,),
    "TQ1_0": (52,),
    **dict.fromkeys(("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S"), (0,)),
}
KINDS = (*HALVES, "MXFP4", "NVFP4", "IQ1_M")
ROWS, FEATURES = 70, 512


def layout(kind: str) -> tuple[int, int, Any]:
    """Features and bytes of a block, and the quantization that it is packed to."""
    found: tuple[int, int, Any] = native.block_types()[kind]
    return found


def random_blocks(
    kind: str, rows: int = ROWS, features: int = FEATURES, most: float = 0.02
) -> Tensor:
    """Rows of blocks of any codes and scales that a file may have: uint8 [rows, bytes].

    Args:
        most: the greatest scale in float16.
    """
    width, size, _ = layout(kind)
    random = np.random.default_rng(len(kind) + size)
    blocks = random.integers(0, 256, (rows, features // width, size), dtype=np.uint8)
    for at in HALVES.get(kind, ()):
        scale = random.uniform(-most, most, (rows, features // width, 1)).astype(np.float16)
        blocks[..., at : at + 2] = scale.view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = random.integers(112, 132, blocks.shape[:2])
    if kind == "NVFP4":
        blocks[..., :4] = random.integers(0, 0x78, (*blocks.shape[:2], 4))
    if kind == "IQ1_M":  # the upper bits of four words are the scale
        halves = random.uniform(-most, most, blocks.shape[:2]).astype(np.float16).view(np.uint16)
        for i in range(4):
            upper = blocks[..., 49 + 2 * i]
            upper[:] = upper & 15 | (halves >> (4 * i) & 15).astype(np.uint8) << 4
    if kind == "TQ2_0":  # three numbers of two bits
        blocks[..., :64] &= 0b10101010
    return torch.from_numpy(blocks.reshape(rows, -1))


def dense(blocks: Tensor, kind: str) -> Tensor:
    """The values of blocks by the gguf library: [rows, features] float32."""
    values = gguf.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(np.ascontiguousarray(values)).float().view(len(blocks), -1)


def test_all_types_of_whole_numbers_with_scales_are_known() -> None:
    assert set(native.block_types()) == set(KINDS)
    for kind, (features, size, _) in native.block_types().items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]] == (features, size)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_unpacked_to_what_they_mean(kind: str) -> None:
    blocks = random_blocks(kind)
    expected = dense(blocks, kind)
    got = torch.empty_like(expected)
    native.unpack_blocks(blocks, kind, got)
    assert torch.equal(got, expected)
    short = torch.empty(expected.shape, dtype=torch.bfloat16)
    native.unpack_blocks(blocks, kind, short)
    assert torch.equal(short, expected.bfloat16())


def packed(kind: str, how: Any, order: Tensor, blocks: Tensor) -> Tensor:
    memory = torch.full((native.coded_size(len(order), FEATURES, how),), 7, dtype=torch.uint8)
    assert native.pack_blocks([(blocks, kind)], order, FEATURES, how, memory)
    return memory


def exact_x(rows: int, group: int) -> Tensor:
    """x that is coded without rounding."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randint(-127, 128, (rows, FEATURES), generator=generator).float()
    x[:, ::group] = 127
    return x


@pytest.mark.parametrize("is_wider", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_blocks_multiply_as_what_they_mean(kind: str, is_wider: bool) -> None:
    blocks, how = random_blocks(kind), layout(kind)[2]
    if is_wider:  # as beside rows of another type
        how = native.Quantization(8, 16, True)
    order = torch.cat([torch.arange(ROWS).flip(0), torch.tensor([-1, 3])])
    memory = packed(kind, how, order, blocks)
    expected = dense(blocks, kind)[order].double()
    expected[-2] = 0
    for rows in (1, 3, 9, 40):
        x, out = exact_x(rows, how.group), torch.empty(rows, len(order))
        native.linear(out, x, memory, len(order), FEATURES, quantization=how)
        product = x.double() @ expected.T
        # A scale may be a product of two in the file, and is rounded to float16 here: 2^-11.
        slack = 2.0**-10 * (x.double().abs() @ expected.abs().T + expected.abs().amax(1))
        assert bool(((out - product).abs() <= slack + 1e-6).all())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_packed_blocks_are_looked_up(kind: str) -> None:
    blocks, how = random_blocks(kind), layout(kind)[2]
    memory = packed(kind, how, torch.arange(ROWS), blocks)
    program, ids = native.Program(), torch.tensor([69, 0, 33, 33, 12])
    out = torch.zeros(len(ids), FEATURES)
    view = (program.buffer(out), 0, FEATURES)
    program.embed(view, memory, ROWS, True, False, how)
    row = np.arange(len(ids))
    one = np.array([len(ids)])
    program.run(
        native.Step(
            ids.numpy(), row, row, np.zeros(1, np.int64), one, row[None], row[:0], np.zeros(1, int)
        ),
        0,
        1,
    )
    expected = dense(blocks, kind)[ids]
    spread = expected.abs().amax(1, keepdim=True)
    assert bool(((out - expected).abs() <= 2.0**-10 * spread + 1e-6).all())


def test_rows_of_several_types_are_packed_together() -> None:
    kinds = ("Q6_K", "Q4_1", "Q5_0")
    parts = [(random_blocks(kind, rows=5), kind) for kind in kinds]
    how, order = native.Quantization(6, 16, True), torch.tensor([14, 0, 7, 5, -1, 10])
    memory = torch.zeros(native.coded_size(len(order), FEATURES, how), dtype=torch.uint8)
    assert native.pack_blocks(parts, order, FEATURES, how, memory)
    every = torch.cat([dense(*one) for one in parts])
    expected = every[order] * (order >= 0)[:, None]
    x, out = exact_x(4, 16), torch.empty(4, len(order))
    native.linear(out, x, memory, len(order), FEATURES, quantization=how)
    assert torch.allclose(out, x @ expected.T, atol=float(2.0**-9 * (x @ expected.T).abs().max()))


def test_a_group_of_one_number_that_is_no_multiple_of_a_scale_is_that_number() -> None:
    blocks = torch.zeros(1, 20, dtype=torch.uint8)
    blocks[0, 2:4] = torch.tensor([0.75], dtype=torch.half).view(torch.uint8)  # w = 0 q + 0.75
    how = layout("Q4_1")[2]
    memory = torch.zeros(native.coded_size(1, 32, how), dtype=torch.uint8)
    assert native.pack_blocks(
        [(blocks, "Q4_1")], torch.zeros(1, dtype=torch.int64), 32, how, memory
    )
    out = torch.empty(1, 1)
    native.linear(out, torch.full((1, 32), 127.0), memory, 1, 32, quantization=how)
    assert float(out) == pytest.approx(0.75 * 127 * 32)


@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_scales_that_float16_has_not_are_reported(scale: float) -> None:
    blocks = random_blocks("Q8_0", rows=40)
    blocks[17, 34:36] = torch.tensor([scale], dtype=torch.half).view(torch.uint8)
    how = layout("Q8_0")[2]
    memory = torch.zeros(native.coded_size(40, FEATURES, how), dtype=torch.uint8)
    assert not native.pack_blocks([(blocks, "Q8_0")], torch.arange(40), FEATURES, how, memory)
    large = torch.zeros(1, 17, dtype=torch.uint8)
    large[0, 0] = 200  # 2^72
    how = layout("MXFP4")[2]
    memory = torch.zeros(native.coded_size(1, 32, how), dtype=torch.uint8)
    assert not native.pack_blocks([(large, "MXFP4")], torch.arange(1), 32, how, memory)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"blocks": [(torch.zeros(4, 34, dtype=torch.uint8), "Q9")]}, "type is 'Q9'; known are"),
        ({"blocks": [(torch.zeros(4, 34), "Q8_0")]}, "blocks must be uint8"),
        ({"blocks": [(torch.zeros(4, 33, dtype=torch.uint8), "Q8_0")]}, "33 bytes a row, not 34"),
        ({"k": 40}, "k is 40; a block of Q8_0 has 32 features"),
        ({"rows": torch.tensor([0, 4, 1, 2])}, "rows is 4; it must be at most 3"),
        ({"quantization": (4, 32)}, "has no room for blocks of Q8_0"),
        ({"quantization": (8, 48)}, "has no room for blocks of Q8_0"),
    ],
)
def test_wrong_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "blocks": [(torch.zeros(4, 34, dtype=torch.uint8), "Q8_0")],
        "rows": torch.arange(4),
        "k": 32,
        "quantization": (8, 32),
    } | changed
    arguments["quantization"] = native.Quantization(*arguments["quantization"])
    size = native.coded_size(4, arguments["k"], arguments["quantization"])
    with pytest.raises(ValueError, match=message):
        native.pack_blocks(**arguments, packed=torch.zeros(size, dtype=torch.uint8))


def test_blocks_with_zeros_need_a_quantization_with_zeros() -> None:
    with pytest.raises(ValueError, match="has no room for blocks of Q4_1"):
        native.pack_blocks(
            [(torch.zeros(1, 20, dtype=torch.uint8), "Q4_1")],
            torch.zeros(1, dtype=torch.int64),
            32,
            native.Quantization(4, 32),
            torch.zeros(native.coded_size(1, 32, native.Quantization(4, 32)), dtype=torch.uint8),
        )
