"""The product with quantized weights against float64, at the edges of blocks and of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tests.engine.native.test_linear import (
    BF16,
    DEPTHS,
    DTYPES,
    GUARD,
    ROWS,
    WIDTHS,
    assert_close,
    every_level,
    guarded,
    is_kept,
    numbers,
    padded,
)
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("coded_level")

GROUPS = st.sampled_from((16, 32, 64, 96, 128))
BITS = st.sampled_from((4, 5, 6, 8))


def packed_by(weight: Tensor, scales: Tensor, zeros: Tensor | None, how: Any) -> Tensor:
    """The codes of weights [n, k] by these scales."""
    packed = torch.full((native.coded_size(*weight.shape, how),), 7, dtype=torch.uint8)
    native.pack_coded(weight, scales, zeros, how, packed)
    return packed


@dataclass(frozen=True)
class Quantized:
    """Weights as codes.

    Attributes:
        how: `native.Quantization`.
        packed: for the kernels.
        weight: [n, k] in float64, exactly what the codes mean.
    """

    how: Any
    packed: Tensor
    weight: Tensor

    @classmethod
    def make(cls, n: int, k: int, bits: int, group: int, has_zeros: bool, seed: int) -> Quantized:
        generator = torch.Generator().manual_seed(seed)
        if bits == 5 and group % 32:  # the fifth bits of 32 codes are a word
            bits = 6
        groups = math.ceil(k / group)
        codes = torch.randint(0, 2**bits, (n, k), generator=generator)
        scales = torch.rand(n, groups, generator=generator) / (k**0.5 * 2 ** (bits - 2))
        scales = (scales + 2.0**-14).half()
        zeros = torch.randint(0, 2**bits, (n, groups), generator=generator).half()
        middle = zeros.double() if has_zeros else torch.full_like(zeros, 2 ** (bits - 1)).double()
        of_each = torch.arange(k) // group
        weight = scales.double()[:, of_each] * (codes.double() - middle[:, of_each])
        how = native.Quantization(bits, group, has_zeros)
        packed = packed_by(weight.float(), scales, zeros if has_zeros else None, how)
        return cls(how, packed, weight)

    @property
    def group(self) -> int:
        return int(self.how.group)

    def multiply(self, out: Tensor, x: Tensor, **options: object) -> None:
        n, k = self.weight.shape
        native.linear(out, x, self.packed, n, k, quantization=self.how, **options)

    def slack(self, x: Tensor) -> Tensor:
        """How far sums may be from those in float64: each group is rounded a few times."""
        width = self.weight.shape[1]
        # Before the zero is taken away, a group's sum may be as large as the codes allow.
        groups = math.ceil(width / self.group)
        spread = self.weight.abs().amax(1) * 2 + 2.0**-12
        return (groups + 8) * 2.0**-23 * (x.abs().sum(1, keepdim=True) * spread)


def exactly_coded(m: int, k: int, group: int, dtype: torch.dtype, seed: int) -> Tensor:
    """x whose codes have no rounding: whole numbers up to 127, times a power of two."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-127, 128, (m, k), generator=generator).double()
    x[:, ::group] = 127
    powers = torch.randint(-6, 3, (m, math.ceil(k / group)), generator=generator)
    return (x * 2.0 ** powers[:, torch.arange(k) // group]).to(dtype)


@every_level
@given(
    m=ROWS,
    n=WIDTHS,
    k=DEPTHS,
    dtype=st.sampled_from(DTYPES),
    bits=BITS,
    group=GROUPS,
    has_zeros=st.booleans(),
    gap=st.integers(0, 40),
    seed=st.integers(0, 2**20),
)
def test_is_the_product_of_what_the_codes_mean(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    bits: int,
    group: int,
    has_zeros: bool,
    gap: int,
    seed: int,
) -> None:
    quantized = Quantized.make(n, k, bits, group, has_zeros, seed)
    x = exactly_coded(m, k, group, dtype, seed + 1)
    out = guarded(m, n, gap, torch.float32, GUARD)
    quantized.multiply(out, padded(x, gap))
    assert_close(out, x.double() @ quantized.weight.T, quantized.slack(x.double()))
    assert is_kept(out, GUARD)


@every_level
@given(m=ROWS, n=WIDTHS, k=DEPTHS, bits=BITS, group=GROUPS, seed=st.integers(0, 2**20))
def test_x_loses_half_a_code_at_most(
    m: int, n: int, k: int, bits: int, group: int, seed: int
) -> None:
    quantized = Quantized.make(n, k, bits, group, True, seed)
    x = numbers(m, k, BF16, seed + 1)
    out = torch.empty(m, n)
    quantized.multiply(out, padded(x, 0))
    filled = functional.pad(x.double(), (0, -k % group)).view(m, math.ceil(k / group), group)
    half = filled.abs().amax(-1) / 127 * 0.5001
    sizes = functional.pad(quantized.weight.abs(), (0, -k % group)).view(n, -1, group).sum(-1)
    lost = half @ sizes.T
    assert_close(out, x.double() @ quantized.weight.T, lost + quantized.slack(x.double()))


@every_level
@given(
    m=ROWS,
    panels=st.integers(1, 4),
    k=DEPTHS,
    bits=BITS,
    way=st.sampled_from(("residual", "gated", "bias")),
    seed=st.integers(0, 2**20),
)
def test_what_follows_the_sums_is_that_of_other_weights(
    m: int, panels: int, k: int, bits: int, way: str, seed: int
) -> None:
    n = 32 * panels
    quantized = Quantized.make(n, k, bits, 32, False, seed)
    x = padded(exactly_coded(m, k, 32, BF16, seed + 1), 3)
    plain = torch.empty(m, n)
    quantized.multiply(plain, x)
    out = guarded(m, n // 2 if way == "gated" else n, 3, torch.float32, GUARD)
    if way == "residual":
        added = numbers(m, n, BF16, seed)
        quantized.multiply(out, x, residual=added, alpha=0.5)
        expected = added + 0.5 * plain
    elif way == "gated":
        quantized.multiply(out, x, gated=True, activation="relu")
        gates, ups = plain.view(m, panels, 2, 16).unbind(2)
        expected = (gates.relu() * ups).reshape(m, n // 2)
    else:
        bias = numbers(1, n, torch.float32, seed)[0]
        quantized.multiply(out, x, bias=bias, activation="relu")
        expected = (plain + bias).relu()
    largest = plain.abs().amax(1, keepdim=True).double() + 4
    assert_close(out, expected.double(), 2.0**-22 * (expected.abs().double() + largest))
    assert is_kept(out, GUARD)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("group", [16, 32, 160])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_codes_are_summed_exactly(bits: int, group: int, sign: int) -> None:
    """AVX2 sums products of bytes in 16 bits as long as they fit."""
    m, n, k = 9, 40, 320
    code = 2.0**bits - 1
    scales = torch.ones(n, k // group, dtype=torch.float16)
    how = native.Quantization(bits, group, True)
    packed = packed_by(torch.full((n, k), code), scales, torch.zeros_like(scales), how)
    out = torch.empty(m, n)
    native.linear(out, torch.full((m, k), sign * 127.0), packed, n, k, quantization=how)
    assert (out == sign * 127.0 * code * k).all()


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_a_row_is_the_same_whatever_is_beside_it_and_whoever_computes(
    bits: int, has_zeros: bool
) -> None:
    """Weights are unpacked by each few rows, or once for all."""
    m, n, k = 300, 200, 1100
    quantized, x = Quantized.make(n, k, bits, 64, has_zeros, 1), padded(numbers(m, k, BF16, 2), 0)
    before, results = native.threads(), []
    for threads, rows in ((1, m), (2, m), (3, m), (2, 1), (1, 3), (2, 5), (1, 20), (3, 40)):
        native.set_threads(threads)
        out = torch.empty(rows, n)
        quantized.multiply(out, x[:rows])
        results.append(out)
    native.set_threads(before)
    for out in results[1:]:
        assert torch.equal(out, results[0][: len(out)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_its_own_row_alone(value: float) -> None:
    quantized = Quantized.make(40, 100, 4, 32, False, 1)
    x = numbers(5, 100, BF16, 2)
    good, out = torch.empty(5, 40), torch.empty(5, 40)
    quantized.multiply(good, padded(x, 0))
    x[3, 70] = value
    quantized.multiply(out, padded(x, 0))
    assert out[3].isnan().all()
    kept = [0, 1, 2, 4]
    assert torch.equal(out[kept], good[kept])


@pytest.mark.parametrize("value", [0.0, 1e-44, 1e-37])
def test_rows_of_nothing_give_next_to_nothing(value: float) -> None:
    quantized = Quantized.make(40, 100, 8, 32, False, 1)
    out = torch.empty(2, 40)
    quantized.multiply(out, torch.full((2, 128), value))
    assert (out.abs() <= 1e-35).all()


@every_level
@given(
    n=WIDTHS,
    k=DEPTHS,
    dtype=st.sampled_from(DTYPES),
    bits=st.sampled_from((4, 8)),
    group=GROUPS,
    gap=st.integers(0, 40),
    seed=st.integers(0, 2**20),
)
def test_weights_become_what_their_codes_mean(
    n: int, k: int, dtype: torch.dtype, bits: int, group: int, gap: int, seed: int
) -> None:
    how = native.Quantization(bits, group)
    original = numbers(n, k, torch.float32, seed).to(dtype)
    weight = guarded(n, k, gap, dtype, GUARD)
    weight[:] = original
    scales = torch.empty(n, math.ceil(k / group), dtype=torch.float16)
    native.quantize(weight, scales, how)
    assert is_kept(weight, GUARD)
    step = scales.double()[:, torch.arange(k) // group]
    codes = weight.double() / torch.where(step == 0, 1, step)
    rounded = 2.0**-8 if dtype == BF16 else 2.0**-11
    assert ((codes - codes.round()).abs() <= codes.abs() * rounded).all()
    assert (codes.round() >= -(2 ** (bits - 1))).all()
    assert (codes.round() < 2 ** (bits - 1)).all()
    lost = (weight.double() - original.double()).square().sum()
    slack = original.double().square().sum() * rounded**2
    assert lost <= nearest_loss(original.double(), bits, group) * 1.02 + slack
    # The codes are found again in what was rounded, and give the same product.
    out, eye = torch.empty(k, n), torch.zeros(k, k + -k % 32)
    eye[:, :k] = torch.eye(k)
    native.linear(out, eye, packed_by(weight, scales, None, how), n, k, quantization=how)
    assert torch.allclose(out.T.double(), codes.round() * step, rtol=1e-6, atol=0)


def nearest_loss(weight: Tensor, bits: int, group: int) -> float:
    """The squared loss if a group's greatest number becomes the last code."""
    k = weight.shape[1]
    grouped = functional.pad(weight, (0, -k % group)).view(len(weight), -1, group)
    step = grouped.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    codes = (grouped / torch.where(step == 0, 1, step)).round()
    return float((codes * step - grouped).square().sum())


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_that_are_codes_already_stay_as_they_are(bits: int) -> None:
    how = native.Quantization(bits, 32)
    for dtype in DTYPES:
        weight = numbers(40, 100, torch.float32, 1).to(dtype)
        scales = torch.empty(40, 4, dtype=torch.float16)
        native.quantize(weight, scales, how)
        again = weight.clone()
        native.quantize(again, torch.empty_like(scales), how)
        assert (again.float() - weight.float()).norm() <= 0.004 * weight.float().norm()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_group_that_is_not_finite_becomes_nan(value: float) -> None:
    weight = numbers(3, 100, torch.float32, 1)
    weight[1, 40] = value
    native.quantize(weight, torch.empty(3, 4, dtype=torch.float16), native.Quantization(4, 32))
    assert weight[1, 32:64].isnan().all()
    assert int(weight.isnan().sum()) == 32


@pytest.mark.parametrize("value", [0.0, 1e-40, 1e-12])
def test_weights_of_nothing_become_nothing(value: float) -> None:
    weight = torch.full((3, 100), value)
    native.quantize(weight, torch.empty(3, 4, dtype=torch.float16), native.Quantization(8, 32))
    assert not weight.any()


@given(
    n=st.integers(1, 40),
    k=DEPTHS,
    dtype=st.sampled_from(DTYPES),
    bits=st.sampled_from((4, 8)),
    group=GROUPS,
    kind=st.sampled_from(("symmetric", "whole zeros", "any zeros")),
    seed=st.integers(0, 2**20),
)
def test_codes_are_recognized_in_what_they_mean(
    n: int, k: int, dtype: torch.dtype, bits: int, group: int, kind: str, seed: int
) -> None:
    """Zeros are looked for in codes of 4 bits: of 8, rounding to bfloat16 leaves too little."""
    if bits == 8:
        kind = "symmetric"
    generator = torch.Generator().manual_seed(seed)
    groups = math.ceil(k / group)
    of_each = torch.arange(k) // group
    codes = torch.randint(0, 2**bits, (n, k), generator=generator).double()
    scales = (torch.rand(n, groups, generator=generator) + 0.05).half().double() / 64
    zeros = torch.full((n, groups), 2.0 ** (bits - 1)).double()
    if kind != "symmetric":
        zeros = torch.rand(n, groups, generator=generator).double() * 2**bits
        zeros = zeros.round() if kind == "whole zeros" else zeros
    weight = (scales[:, of_each] * (codes - zeros[:, of_each])).to(dtype)
    how = native.Quantization(bits, group, kind != "symmetric")
    found = torch.empty(n, groups, dtype=torch.float16)
    found_zeros = None if kind == "symmetric" else torch.empty_like(found)
    assert native.recognize(weight, found, found_zeros, how)
    meant = multiplied_out(weight, found, found_zeros, how)
    greatest = functional.pad(weight.double().abs(), (0, -k % group)).view(n, groups, group)
    # Numbers far from 0 keep less of their codes.
    allowed = greatest.amax(-1)[:, of_each] * 1.75 * 2.0**-8
    assert ((meant - weight.double()).abs() <= allowed).all()


@pytest.mark.parametrize("greatest", [-128, -127, 127])
@pytest.mark.parametrize("group", [16, 32, 128])
def test_codes_of_8_bits_are_found_exactly_in_floats(group: int, greatest: int) -> None:
    """A step that is 1/256 too small fits all codes, too, where numbers may have been rounded to
    bfloat16.
    """
    generator = torch.Generator().manual_seed(group)
    codes = torch.randint(-127, 128, (40, 256 // group, group), generator=generator)
    codes[..., 3] = greatest
    scales = (torch.rand(40, 256 // group, 1, generator=generator) / 64 + 2.0**-10).half()
    weight = (codes * scales.float()).view(40, 256)
    found = torch.empty(40, 256 // group, dtype=torch.float16)
    how = native.Quantization(8, group)
    assert native.recognize(weight, found, None, how)
    assert torch.equal(multiplied_out(weight, found, None, how), weight.double())


@pytest.mark.parametrize(("bits", "group"), [(5, 32), (6, 16)])
def test_numbers_of_fp4_are_found(bits: int, group: int) -> None:
    """But for the rounding of a scale to float16."""
    generator = torch.Generator().manual_seed(bits)
    numbers_of_fp4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6])
    chosen = numbers_of_fp4[torch.randint(15, (40, 256 // group, group), generator=generator)]
    scales = 2.0 ** torch.randint(-9, -3, (40, 256 // group, 1), generator=generator)
    weight = (chosen * scales).view(40, 256)
    found = torch.empty(40, 256 // group, dtype=torch.float16)
    how = native.Quantization(bits, group)
    assert native.recognize(weight, found, None, how)
    off = multiplied_out(weight, found, None, how) - weight.double()
    assert bool((off.abs() <= 2.0**-11 * weight.abs()).all())


def multiplied_out(weight: Tensor, scales: Tensor, zeros: Tensor | None, how: Any) -> Tensor:
    """The values of weights' codes by the kernels, [n, k]."""
    n, k = weight.shape
    table = packed_by(weight, scales, zeros, how)
    out = torch.empty(n, k)
    native.embed(out, torch.arange(n), table, n, True, how)
    return out.double()


@given(
    n=st.integers(1, 20),
    k=st.integers(64, 300),
    way=st.sampled_from(((4, False), (4, True), (8, False))),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**20),
)
def test_other_numbers_are_not_taken_for_codes(
    n: int, k: int, way: tuple[int, bool], dtype: torch.dtype, seed: int
) -> None:
    bits, has_zeros = way
    weight = numbers(n, k, torch.float32, seed).to(dtype)
    scales = torch.empty(n, math.ceil(k / 32), dtype=torch.float16)
    zeros = torch.empty_like(scales) if has_zeros else None
    assert not native.recognize(weight, scales, zeros, native.Quantization(bits, 32, has_zeros))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_no_code(value: float) -> None:
    weight = torch.ones(3, 64)
    weight[1, 40] = value
    for has_zeros in (False, True):
        scales = torch.empty(3, 2, dtype=torch.float16)
        zeros = torch.empty_like(scales) if has_zeros else None
        assert not native.recognize(weight, scales, zeros, native.Quantization(4, 32, has_zeros))


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0])
def test_a_group_of_one_number_is_a_code(value: float, has_zeros: bool) -> None:
    weight = torch.full((2, 50), value)
    how = native.Quantization(4, 32, has_zeros)
    scales = torch.empty(2, 2, dtype=torch.float16)
    zeros = torch.empty_like(scales) if has_zeros else None
    assert native.recognize(weight, scales, zeros, how)
    assert torch.equal(multiplied_out(weight, scales, zeros, how), weight.double())


@every_level
@given(
    rows=st.integers(0, 40),
    width=st.integers(1, 150),
    vocab_size=st.integers(1, 150),
    dtype=st.sampled_from(DTYPES),
    bits=BITS,
    group=GROUPS,
    has_zeros=st.booleans(),
    gap=st.integers(0, 20),
    seed=st.integers(0, 2**20),
)
def test_rows_of_a_table_are_what_the_codes_mean(
    rows: int,
    width: int,
    vocab_size: int,
    dtype: torch.dtype,
    bits: int,
    group: int,
    has_zeros: bool,
    gap: int,
    seed: int,
) -> None:
    table = Quantized.make(vocab_size, width, bits, group, has_zeros, seed)
    ids = torch.randint(vocab_size, (rows,), generator=torch.Generator().manual_seed(seed))
    out = guarded(rows, width, gap, dtype, GUARD)
    native.embed(out, ids, table.packed, vocab_size, True, table.how)
    assert torch.equal(out, table.weight[ids].float().to(dtype))
    assert is_kept(out, GUARD)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"packed": torch.zeros(9, dtype=torch.uint8)}, "packed has 9 numbers, not"),
        ({"packed": torch.zeros(2368)}, "packed has the wrong type or rank"),
        ({"weight": torch.zeros(40, 60).half()}, "weight must be float32 or bfloat16"),
        ({"scales": torch.zeros(40, 2)}, "scales must be float16 and have two dimensions"),
        ({"scales": torch.zeros(40, 3).half()}, "scales has 3 columns, not 2"),
        ({"zeros": torch.zeros(40, 2).half()}, "zeros are given, but the quantization has none"),
        ({"quantization": (4, 32, True)}, "packed has|zeros are missing"),
    ],
)
def test_wrong_arguments_are_told_by_name(changed: dict[str, object], message: str) -> None:
    how = native.Quantization(4, 32)
    arguments: dict[str, object] = {
        "weight": torch.zeros(40, 60),
        "scales": torch.zeros(40, 2).half(),
        "zeros": None,
        "quantization": how,
        "packed": torch.zeros(native.coded_size(40, 60, how), dtype=torch.uint8),
    }
    arguments |= changed
    if isinstance(arguments["quantization"], tuple):
        arguments["quantization"] = native.Quantization(*arguments["quantization"])
    with pytest.raises(ValueError, match=message):
        native.pack_coded(**arguments)


@pytest.mark.parametrize(
    ("bits", "group", "message"),
    [
        (7, 32, "bits must be 4, 5, 6 or 8"),
        (5, 48, "group must be a multiple of 32"),
        (4, 40, "group must be a multiple of 16"),
        (8, 0, "group is 0; it must be at least 16"),
    ],
)
def test_what_is_no_quantization_is_told_by_name(bits: int, group: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.Quantization(bits, group)
