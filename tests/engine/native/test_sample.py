from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.model.step.draw import Filters, KernelDraw, TorchDraw
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
# Tiny operators gain nothing from a second thread and lose much where the cores are shared.
torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("level")
each_level = settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

Floats = npt.NDArray[np.float64]
INF = float("inf")
# Half the width of a border within which rounding may decide, as a part of the total weight.
MARGIN = 1e-5
# Temperature, top_k (0: all), top_p, min_p.
Choice = tuple[float, int, float, float]
CHOICES: list[Choice] = [
    (1.0, 0, 1.0, 0.0),
    (0.05, 0, 1.0, 0.0),
    (0.8, 0, 0.95, 0.0),
    (1.5, 0, 0.99, 0.0),
    (4.0, 0, 0.9999, 0.0),
    (100.0, 0, 0.5, 0.0),
    (0.8, 50, 1.0, 0.0),
    (3.0, 3000, 1.0, 0.0),
    (3.0, 3000, 0.9, 0.001),
    (1.0, 0, 1.0, 0.05),
    (0.9, 40, 0.9, 0.01),
]


def filters(choices: Sequence[Choice], uniform: Sequence[float], vocab_size: int) -> Filters:
    temperature, top_k, top_p, min_p = zip(*choices, strict=True)
    return Filters(
        np.array(temperature, np.float32),
        np.array([min(k or vocab_size, vocab_size) for k in top_k], np.int64),
        np.array(top_p, np.float64),
        np.array(min_p, np.float32),
        np.array(uniform, np.float64),
    )


def draw(logits: torch.Tensor, choices: Sequence[Choice], uniform: Sequence[float]) -> list[int]:
    drawn = KernelDraw(native)(logits, filters(choices, uniform, logits.shape[1]))
    tokens: list[int] = drawn.tolist()
    return tokens


def reference(logits: Floats, choice: Choice, uniform: float) -> tuple[int, bool]:
    """The definition in float64 with a full sort: the token, and whether rounding may decide."""
    temperature, top_k, top_p, min_p = choice
    if temperature == 0:
        return int(logits.argmax()), False
    weights = np.exp((logits - logits.max()) / temperature)
    if top_k:
        weights[logits < np.sort(logits)[-min(top_k, len(logits))]] = 0
    near = False
    if top_p < 1:
        # Equals share one fate, so that only the last of them is a border.
        order = np.argsort(-logits, kind="stable")
        falling, masses = logits[order], weights[order].cumsum()
        ends = np.append(falling[1:] < falling[:-1], True)
        wanted = top_p * masses[-1]
        at = int(np.argmax(ends & (masses >= wanted)))
        near = bool((abs(masses[ends] - wanted) < MARGIN * masses[-1]).any())
        weights[logits < logits[order[at]]] = 0
    if min_p > 0:
        near |= bool((abs(weights / min_p - 1) < MARGIN).any())
        weights[weights < min_p] = 0
    masses = weights.cumsum()
    target = uniform * masses[-1]
    token = int(np.searchsorted(masses, target, side="right"))
    before = masses[token] - weights[token]
    near |= min(target - before, masses[token] - target) < MARGIN * masses[-1]
    return token, near


eighths = st.integers(-64, 64).map(lambda x: x / 8)  # so that there are ties
choices = st.tuples(
    st.sampled_from([0.0, 0.3, 0.9, 2.5]),
    st.integers(0, 60),
    st.just(1.0) | st.floats(0.05, 0.999),
    st.just(0.0) | st.floats(0.001, 0.9),
)


@given(
    st.lists(eighths | st.just(-INF), min_size=1, max_size=400),
    choices,
    st.floats(0, 1, exclude_max=True),
)
@each_level
def test_any_short_row_is_that_of_the_definition(
    row: list[float], choice: Choice, uniform: float
) -> None:
    assume(max(row) > -INF)
    token, near = reference(np.array(row), choice, uniform)
    assume(not near)
    logits = torch.tensor([row])
    assert draw(logits, [choice], [uniform]) == [token]
    assert TorchDraw()(logits, filters([choice], [uniform], len(row))).tolist() == [token]


@pytest.mark.parametrize("vocab_size", [1, 17, 129, 9001])
@pytest.mark.parametrize("kind", ["normal", "flat", "peaked", "ties", "sorted", "ruled out"])
def test_rows_of_any_size_and_shape_are_those_of_the_definition(vocab_size: int, kind: str) -> None:
    rng = np.random.default_rng(vocab_size)
    rows = rng.normal(0, 3, (len(CHOICES), vocab_size))
    if kind == "flat":
        rows *= 0.01
    elif kind == "peaked":
        rows[:, : 1 + vocab_size // 1000] += 15
    elif kind == "ties":
        rows = rows.round()
    elif kind == "sorted":
        rows.sort()
    elif kind == "ruled out":
        rows[rng.random(rows.shape) < 0.9] = -INF
        rows[:, vocab_size // 2] = 1
    logits = torch.tensor(rows, dtype=torch.float32)
    uniform = rng.random(len(CHOICES)).tolist()
    by_kernel = draw(logits, CHOICES, uniform)
    by_torch = TorchDraw()(logits, filters(CHOICES, uniform, vocab_size)).tolist()
    decided = 0
    for row, choice in enumerate(CHOICES):
        token, near = reference(logits[row].double().numpy(), choice, uniform[row])
        if not near:
            decided += 1
            assert by_kernel[row] == token, choice
            assert by_torch[row] == token, choice
    assert decided >= 3


@pytest.mark.parametrize("size", [3, 70_000])
def test_filters_without_weights_leave_just_what_the_definition_leaves(size: int) -> None:
    """Equal weights are whole numbers, whose sums are exact: here nothing is left to rounding."""
    logits = torch.zeros(1, size)
    for uniform in (0.0, 0.25, 0.5, 1 - 2.0**-53):
        for choice in ((1.0, 0, 1.0, 0.0), (2.0, 2, 1.0, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 0, 1, 1)):
            assert draw(logits, [choice], [uniform]) == [math.floor(uniform * size)]


@pytest.mark.parametrize("top_k", [1, 2, 127, 128, 300, 9000, 20_000])
def test_top_k_leaves_the_largest_and_their_equals(top_k: int) -> None:
    rng = np.random.default_rng(top_k)
    logits = rng.integers(-4000, 4000, 20_000) / 512
    kept = np.nonzero(logits >= np.sort(logits)[-top_k])[0]
    uniform = [*(np.arange(400) / 400), 1 - 2.0**-53]
    # At this temperature weights are nearly equal: the draws go evenly over what is left.
    rows = torch.tensor(logits, dtype=torch.float32).expand(len(uniform), -1)
    drawn = draw(rows, [(1e6, top_k, 1.0, 0.0)] * len(uniform), uniform)
    places = np.searchsorted(kept, drawn)
    assert (kept[places] == drawn).all()
    assert abs(places - np.floor(np.array(uniform) * len(kept))).max() <= 1
    assert (drawn[0], drawn[-1]) == (kept[0], kept[-1])


def test_more_is_asked_for_than_is_finite() -> None:
    logits = torch.full((3, 5000), -INF)
    logits[:, 4999] = 2.0
    logits[1:, 70] = 2.0
    choices: list[Choice] = [(1.0, 50, 1.0, 0.0), (1.0, 50, 1.0, 0.0), (1.0, 4000, 0.99, 0.0)]
    assert draw(logits, choices, [0.3, 0.49, 0.51]) == [4999, 70, 4999]


@pytest.mark.parametrize("choice", [(0.0, 0, 1.0, 0.0), *CHOICES])
@pytest.mark.parametrize("place", [0, 16, 31, 127, 128, 299])
def test_rows_that_have_no_token_fail_alone(choice: Choice, place: int) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    uniform = [0.1, 0.4, 0.6, 0.9]
    expected = draw(logits, [choice] * 4, uniform)
    assert min(expected) >= 0
    for row, bad in ((0, math.nan), (1, INF), (3, -math.nan)):
        logits[row, place] = bad
        expected[row] = -1
    assert draw(logits, [choice] * 4, uniform) == expected
    assert draw(torch.full((1, 300), -INF), [choice], [0.5]) == [-1]


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.randint(-3, 4, (200, 1000), generator=torch.Generator().manual_seed(1)).float()
    logits[:100, :900] -= 10
    expected = logits.numpy().argmax(1).tolist()
    assert draw(logits, [(0.0, 7, 0.5, 0.5)] * 200, [0.7] * 200) == expected


def test_the_extremes_of_float32_are_numbers_like_others() -> None:
    large = float(np.finfo(np.float32).max)
    logits = torch.tensor([[-large, 0.0, large], [-0.0, 0.0, -1e-45]])
    for temperature in (1e-45, 1e-30, 1.0):
        assert draw(logits[:1], [(temperature, 0, 0.9, 0.0)], [0.99]) == [2]
    assert draw(logits[1:].expand(2, -1), [(1.0, 1, 1.0, 0.0)] * 2, [0.4, 0.9]) == [0, 1]


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """Chi-square over groups of a vocabulary for which the kernel samples before it narrows."""
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 1.5, 9000)
    uniform = rng.random(2000)
    for top_p in (1.0, 0.9):
        rows = torch.tensor(logits, dtype=torch.float32).expand(2000, -1)
        drawn = draw(rows, [(1.2, 0, top_p, 0.0)] * 2000, uniform.tolist())
        weights = np.exp(logits / 1.2)
        order = np.argsort(-logits)
        weights[order[1 + int((weights[order].cumsum() < top_p * weights.sum()).sum()) :]] = 0
        assert weights[drawn].all()
        groups = rng.integers(0, 40, 9000)  # which are mixed over the vocabulary
        wanted = np.bincount(groups, weights, 40) / weights.sum() * 2000
        counts = np.bincount(groups[drawn], minlength=40)
        assert ((counts - wanted) ** 2 / wanted).sum() < 72.1  # 39 degrees, 0.1 %


def test_a_row_is_the_same_alone_with_others_and_on_more_threads() -> None:
    logits = torch.randn(len(CHOICES), 30_000, generator=torch.Generator().manual_seed(3)) * 3
    uniform = np.random.default_rng(3).random(len(CHOICES)).tolist()
    alone = [
        draw(logits[row : row + 1], [choice], [uniform[row]])[0]
        for row, choice in enumerate(CHOICES)
    ]
    before = native.threads()
    try:
        for threads in (1, 2, 5):
            native.set_threads(threads)
            assert draw(logits, CHOICES, uniform) == alone
            backwards = draw(logits.flip(0), CHOICES[::-1], uniform[::-1])
            assert backwards[::-1] == alone
    finally:
        native.set_threads(before)


def test_rows_may_lie_apart_and_are_left_as_they_are() -> None:
    wide = torch.randn(8, 1000, generator=torch.Generator().manual_seed(4))
    kept = wide.clone()
    rows = wide[:, 100:733]
    uniform = np.random.default_rng(4).random(8).tolist()
    choices = CHOICES[:8]
    assert draw(rows, choices, uniform) == draw(rows.contiguous(), choices, uniform)
    assert torch.equal(wide, kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logits", torch.zeros(2, 9, dtype=torch.float64)),
        ("logits", torch.zeros(2, 9, dtype=torch.bfloat16)),
        ("logits", torch.zeros(2, 0)),
        ("logits", torch.zeros(9, 2).T),
        ("temperature", np.ones(2, np.float64)),
        ("top_k", np.ones(3, np.int64)),
        ("top_p", np.ones((2, 1), np.float64)),
        ("min_p", np.ones(4, np.float32)[::2]),
        ("uniform", np.ones(1, np.float64)),
        ("tokens", np.ones(2, np.int32)),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, value: object) -> None:
    arguments = {
        "logits": torch.zeros(2, 9),
        **filters([CHOICES[0]] * 2, [0.5] * 2, 9)._asdict(),
        "tokens": np.zeros(2, np.int64),
    }
    native.sample(**arguments)
    with pytest.raises(ValueError, match=f"^{name} "):
        native.sample(**arguments | {name: value})


@pytest.mark.parametrize(
    ("name", "numbers", "told"),
    [
        ("temperature", [-0.5, math.nan, -INF], "at least 0"),
        ("top_k", [0, -1], "at least 1"),
        ("top_p", [0.0, -0.1, math.nan], "above 0"),
        ("min_p", [-0.1, 1.5, math.nan], "from 0 to 1"),
        ("uniform", [-0.1, 1.0, math.nan], "at least 0 and below 1"),
    ],
)
def test_numbers_that_leave_nothing_to_choose_from_are_refused(
    name: str, numbers: list[float], told: str
) -> None:
    good = filters([CHOICES[0]] * 2, [0.5] * 2, 5000)._asdict()
    tokens = np.zeros(2, np.int64)
    for number in numbers:
        wrong = good | {name: np.array([good[name][0], number], good[name].dtype)}
        with pytest.raises(ValueError, match=f"^{name} has .* at 1; it must be {told}$"):
            native.sample(torch.randn(2, 5000), **wrong, tokens=tokens)
