from __future__ import annotations

import math

import numpy as np
import pytest

from app.bench.lengths import Exponential, Fixed, LengthError, Uniform, parse_lengths


def draw(text: str, count: int = 20_000) -> np.ndarray:
    lengths, rng = parse_lengths(text), np.random.default_rng(0)
    return np.array([lengths.sample(rng) for _ in range(count)])


def test_a_number_is_always_that_number() -> None:
    assert set(draw("17", 100)) == {17}
    assert parse_lengths("17") == Fixed(17)
    assert parse_lengths("17").most == 17


def test_uniform_has_both_ends_and_all_between_equally_often() -> None:
    drawn = draw("uniform:3:6")
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    # Five standard deviations of a count of 20,000 trials with probability 1/4.
    assert abs(counts - 5000).max() < 5 * math.sqrt(20_000 * 0.25 * 0.75)
    assert parse_lengths("uniform:3:6") == Uniform(3, 6)
    assert parse_lengths("uniform:3:6").most == 6


@pytest.mark.parametrize("cap", [32, 128, 512, 1536])
def test_exponential_has_the_mean_that_its_cap_leaves(cap: int) -> None:
    drawn = draw(f"exponential:128:{cap}")
    assert drawn.min() >= 1
    assert drawn.max() <= cap
    # Rounding up adds half a token to those that are not cut.
    cut = math.exp(-cap / 128)
    assert drawn.mean() == pytest.approx(128 * (1 - cut) + 0.5 * (1 - cut), rel=0.03)
    assert (drawn == cap).mean() == pytest.approx(cut, abs=0.015)
    assert parse_lengths(f"exponential:128:{cap}") == Exponential(128.0, cap)
    assert parse_lengths(f"exponential:128:{cap}").most == cap


@pytest.mark.parametrize("text", ["17", "uniform:3:6", "exponential:1.5:9"])
def test_lengths_are_told_as_they_are_stated(text: str) -> None:
    assert str(parse_lengths(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "0", "-1", "1.5", "gauss:1:2"),
        *("uniform:3", "uniform:6:3", "uniform:0:3", "uniform:1:2:3"),
        *("exponential:128", "exponential:0:9", "exponential:inf:9", "exponential:x:9"),
    ],
)
def test_another_form_is_refused_with_the_allowed_ones(text: str) -> None:
    with pytest.raises(LengthError) as caught:
        parse_lengths(text)
    assert str(caught.value) == (
        f"{text!r} is not a length; it must be N, uniform:LOW:HIGH or exponential:MEAN:CAP, in"
        " tokens, at least 1"
    )
