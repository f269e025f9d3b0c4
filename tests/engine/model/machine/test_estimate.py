"""The estimate of fitting models, by weights and cache alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.model.files.checkpoint import Checkpoint, StoredTensor
from engine.model.machine.estimate import Estimate, Fit, Numbers

MODEL = Estimate(weight_bytes=1_000_000, token_bytes=100, context_length=1_000)


@pytest.mark.parametrize(
    ("budget", "fit", "tokens", "contexts"),
    [
        (1_299_999, Fit.FULL, 2_999, 2),
        (1_100_000, Fit.FULL, 1_000, 1),
        (1_099_999, Fit.SHORTER, 999, 0),
        (1_025_600, Fit.SHORTER, 256, 0),
        (1_025_599, Fit.NOT, 255, 0),
        (999_999, Fit.NOT, 0, 0),
    ],
)
def test_what_fits(budget: int, fit: Fit, tokens: int, contexts: int) -> None:
    assert MODEL.fit(budget) is fit
    assert (MODEL.tokens(budget), MODEL.contexts(budget)) == (tokens, contexts)


def test_what_is_not_known_is_not_guessed() -> None:
    nothing = Estimate(weight_bytes=None, token_bytes=None, context_length=100)
    assert (nothing.fit(1 << 40), nothing.tokens(1 << 40)) == (Fit.UNKNOWN, None)
    weights = Estimate(weight_bytes=100, token_bytes=None, context_length=100)
    assert (weights.fit(1 << 40), weights.fit(99)) == (Fit.UNKNOWN, Fit.NOT)
    assert weights.context_bytes is None
    endless = Estimate(weight_bytes=100, token_bytes=1, context_length=None)
    assert (endless.fit(1 << 40), endless.contexts(1 << 40)) == (Fit.UNKNOWN, None)


def stored(dtype: str, *shape: int) -> StoredTensor:
    return StoredTensor("", Path(), dtype, shape, 0, 0)


def test_a_table_beside_the_head_keeps_its_type() -> None:
    """Norms do, too, and so does what is packed already."""
    norm, matrix, table = stored("BF16", 64), stored("BF16", 64, 256), stored("BF16", 1000, 64)
    packed = [stored("U8", 64, 64), stored("F8_E4M3", 64, 64)]
    tied = Checkpoint(Path(), (norm, matrix, table, *packed), "")
    assert Numbers.of(tied, 1000) == Numbers(64 * 256, 64_000)
    untied = Checkpoint(Path(), (norm, matrix, table, table), "")
    assert Numbers.of(untied, 1000) == Numbers(64 * 256, 64_000)
    assert Numbers.of(tied, 0) == Numbers(64 * 256 + 64_000, 0)


def test_quantizing_saves_what_a_code_and_its_share_of_a_scale_leave() -> None:
    numbers = Numbers(products=1_280_000, head=128_000)
    assert numbers.saved("none", 2) == 0
    assert numbers.saved("int8", 2) == 2 * 1_408_000 - 1_408_000 - 22_000
    assert numbers.saved("int4", 2) == 2 * 1_408_000 - 720_000 - 130_000


def test_what_is_quantized_has_to_fit_before_that() -> None:
    small = replace(MODEL, saved_bytes=750_000)
    assert small.served_bytes == 250_000
    assert small.fit(999_999) is Fit.NOT
    assert small.contexts(1_000_000) == 7
