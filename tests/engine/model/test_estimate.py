"""What fits, by weights and cache alone."""

from __future__ import annotations

import pytest

from engine.model.estimate import Estimate, Fit

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
