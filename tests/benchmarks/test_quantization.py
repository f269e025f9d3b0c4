"""The arithmetic of `benchmarks.quantization`: bytes, rounding, and what it says of errors."""

from __future__ import annotations

import pytest
import torch

from benchmarks.quantization import (
    compare,
    fitting,
    keep,
    make_product,
    relative,
    round_int4,
    round_int8,
    taken_by_others,
    weight_bytes,
    whole,
)


def test_a_step_reads_387_million_weights() -> None:
    assert weight_bytes(16, None, 0) == 2 * 386_498_560
    # Two bfloat16 for each 32 weights: an eighth of a byte a weight.
    assert weight_bytes(4, 32, 4) == 386_498_560 * 5 // 8


def test_a_step_has_all_layers_and_one_head() -> None:
    assert whole(2.0, 3.0, 2) == 27.0


def test_a_group_divides_the_inputs() -> None:
    assert fitting(128, 896) == 128
    assert fitting(128, 576) == 64


def test_others_take_what_is_busy_without_us() -> None:
    assert taken_by_others(busy=3.0, own=2.0, wall=2.0, cores=2) == 0.25
    # The system counts in hundredths of a second.
    assert taken_by_others(busy=1.99, own=2.0, wall=2.0, cores=2) == 0.0


def test_int8_is_off_by_half_a_step_at_most() -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 64)
    numbers, scale = round_int8(weight)
    error = (numbers.float() * scale.float()[:, None] - weight).abs()
    # And by the rounding of the scale, where the largest number is cut.
    assert (error <= scale.float()[:, None] * (0.5 + 127 / 256)).all()


@pytest.mark.parametrize("group", [32, 64])
def test_int4_in_groups_is_the_product_of_what_it_keeps(group: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(32, 128), torch.randn(3, 128).bfloat16()
    numbers, both = round_int4(weight, group)
    scale, middle = both.float().transpose(0, 1).repeat_interleave(group, 1).unbind(-1)
    kept = (numbers - 8) * scale + middle
    assert relative(kept, weight) < 0.15
    found = make_product(f"int4/{group}", 32, 128, keep(f"int4/{group}", weight))(x)
    assert isinstance(found, torch.Tensor)
    assert relative(found, x.float() @ kept.T) < 0.01


def test_equal_logits_have_no_divergence_and_others_have_some() -> None:
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    assert compare(logits, logits) == pytest.approx((0.0, 1.0))
    kl, same = compare(logits.flip(1), logits)
    assert kl > 0.4
    assert same == 0.0
