"""Steady throughput and arithmetic intensity."""

from __future__ import annotations

import pytest

from app.bench.lengths import Fixed
from app.bench.scripts import Synthetic
from benchmarks.policies.burst import original_box
from benchmarks.policies.concurrency import (
    decode_intensity,
    prefill_intensity,
    ridge,
    steady_throughput,
)
from benchmarks.policies.contenders import measure


def test_an_even_load_is_as_fast_in_its_middle_as_all_along() -> None:
    box = original_box()
    workload = Synthetic(num_prompts=8, input_len=Fixed(64), output_len=Fixed(128))
    result = measure("stall_free", box.testbed("stall_free"), workload, seed=0, concurrency=1)
    assert steady_throughput(result) == pytest.approx(result.output_throughput, rel=0.02)


def test_intensity_grows_with_the_batch_as_far_as_it_shares_what_it_reads() -> None:
    box = original_box()
    # Two FLOPs for each weight of two bytes: as many FLOPs a byte as sequences.
    assert decode_intensity(box, 64, 1) == pytest.approx(64, rel=0.02)
    assert decode_intensity(box, 256, 640) < 0.2 * decode_intensity(box, 256, 1)
    # A prompt is a batch of its tokens.
    assert prefill_intensity(box, 1, 64) == pytest.approx(decode_intensity(box, 64, 1), rel=0.05)
    assert ridge(box) == pytest.approx(312 / 1.555)
