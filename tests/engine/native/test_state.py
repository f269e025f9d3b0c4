"""Convolution and recurrence against their definitions, over sequences cut into steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.support.matrices import DTYPES, ROUNDING, assert_within
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")
SLOTS = 5
# Cuts of up to three sequences: each list is the chunks of one.
CUTS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=3)


class Steps:
    """Sequences cut into steps. In step i each sequence has its chunk i, in another order of rows.

    Args:
        inputs: by name, the numbers of all tokens of all sequences, [tokens, ...].
    """

    def __init__(self, cuts: list[list[int]], inputs: dict[str, Tensor]) -> None:
        self._cuts, self._inputs = cuts, inputs
        self._bases = np.cumsum([0] + [sum(chunks) for chunks in cuts])

    def run(self, kernel: Any, width: int, dtype: torch.dtype) -> Tensor:
        """The result of kernel(out, inputs, rows) for each token: [tokens, width]."""
        result = torch.zeros(int(self._bases[-1]), width, dtype=dtype)
        for at in range(max(map(len, self._cuts))):
            rows = [row for row, chunks in enumerate(self._cuts) if at < len(chunks)]
            rows = rows[at % len(rows) :] + rows[: at % len(rows)]
            starts = [sum(self._cuts[row][:at]) for row in rows]
            counts = [self._cuts[row][at] for row in rows]
            tokens = [
                int(self._bases[row]) + start + i
                for row, start, count in zip(rows, starts, counts, strict=True)
                for i in range(count)
            ]
            out = torch.full((len(tokens), width), torch.nan, dtype=dtype)
            given = {name: value[tokens].contiguous() for name, value in self._inputs.items()}
            kernel(out, given, [np.array(one) for one in (starts, counts, [4 - r for r in rows])])
            result[tokens] = out
        return result

    def sequences(self) -> list[slice]:
        bases = self._bases.tolist()
        return [slice(first, last) for first, last in pairwise(bases)]


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=CUTS,
    dtype=st.sampled_from(DTYPES),
    width=st.integers(1, 90),
    taps=st.integers(2, 8),
    biased=st.booleans(),
    activation=st.sampled_from(("none", "silu")),
)
def test_convolution_is_its_definition(
    cuts: list[list[int]],
    dtype: torch.dtype,
    width: int,
    taps: int,
    biased: bool,
    activation: str,
) -> None:
    tokens = sum(map(sum, cuts))
    x = random(tokens, width, seed=1, dtype=dtype)
    weight, bias = random(taps, width, seed=2), random(width, seed=3) if biased else None
    state = torch.full((SLOTS, taps - 1, width), torch.nan, dtype=dtype)

    def kernel(out: Tensor, inputs: dict[str, Tensor], rows: list[Any]) -> None:
        native.convolve(out, inputs["x"], weight, bias, activation, state, *rows)

    steps = Steps(cuts, {"x": x})
    got = steps.run(kernel, width, dtype)
    for one in steps.sequences():
        padded = F.pad(x[one].double().T, (taps - 1, 0))[None]
        kernels = weight.double().T[:, None]
        added = None if bias is None else bias.double()
        exact = F.conv1d(padded, kernels, added, groups=width)[0].T
        sizes = F.conv1d(padded.abs(), kernels.abs(), groups=width)[0].T + 3
        if activation == "silu":
            exact = F.silu(exact)
        assert_within(got[one], exact, exact.abs() * ROUNDING[dtype] + sizes * 1e-5)


def recurrence(
    inputs: dict[str, Tensor], way: dict[str, Any], heads: int, key_heads: int
) -> Tensor:
    """The definition, token by token, in float64: [tokens, heads, value_dim]."""
    exact = {name: value.double() for name, value in inputs.items()}
    tokens = len(exact["decay"])
    query, key = (
        exact[name].reshape(tokens, key_heads, -1).repeat_interleave(heads // key_heads, 1)
        for name in ("query", "key")
    )
    value = exact["value"].reshape(tokens, heads, -1)
    if way["normalize"]:
        query, key = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (query, key))
    steps = exact["decay"] + (0 if way["decay_bias"] is None else way["decay_bias"].double())
    if way["softplus"]:
        steps = F.softplus(steps)
    steps = steps.clamp(way["low"], way["high"])
    state = torch.zeros(heads, key.shape[-1], value.shape[-1], dtype=torch.float64)
    rows = []
    for at in range(tokens):
        state = state * (way["decay_scale"].double() * steps[at]).exp()[:, None, None]
        new = value[at] * (steps[at][:, None] if way["scaled"] else 1)
        if "beta" in exact:
            new = (new - (state * key[at][..., None]).sum(1)) * exact["beta"][at][:, None]
        state = state + key[at][..., None] * new[:, None]
        out = way["scaling"] * (state * query[at][..., None]).sum(1)
        if way["skip"] is not None:
            out = out + way["skip"].double()[:, None] * value[at]
        rows.append(out)
    return torch.stack(rows)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=CUTS,
    dtype=st.sampled_from(DTYPES),
    key_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    key_dim=st.integers(1, 40),
    value_dim=st.sampled_from((1, 5, 16, 24, 48, 128, 150)),
    corrects=st.booleans(),
    is_softplus=st.booleans(),
    scaled=st.booleans(),
    has_skip=st.booleans(),
)
def test_recurrence_is_its_definition(
    cuts: list[list[int]],
    dtype: torch.dtype,
    key_heads: int,
    group: int,
    key_dim: int,
    value_dim: int,
    corrects: bool,
    is_softplus: bool,
    scaled: bool,
    has_skip: bool,
) -> None:
    tokens, heads = sum(map(sum, cuts)), key_heads * group
    inputs = {
        "query": random(tokens, key_heads * key_dim, seed=1, dtype=dtype),
        "key": random(tokens, key_heads * key_dim, seed=2, dtype=dtype),
        "value": random(tokens, heads * value_dim, seed=3, dtype=dtype),
        "decay": random(tokens, heads, seed=4, dtype=dtype).abs() + 0.1,
    }
    if corrects:
        inputs["beta"] = random(tokens, heads, seed=5, dtype=dtype).sigmoid()
    way = {
        "decay_bias": random(heads, seed=6) if is_softplus else None,
        "decay_scale": -random(heads, seed=7).abs() - 0.1,
        "softplus": is_softplus,
        "low": 0.05,
        "high": 1.5,
        "scaled": scaled,
        "skip": random(heads, seed=8) if has_skip else None,
        # Keys of any length would make a correction grow beyond all bounds.
        "normalize": corrects,
        "scaling": 0.3,
    }
    state = torch.full((SLOTS, heads, key_dim, value_dim), torch.nan)

    def kernel(out: Tensor, given: dict[str, Tensor], rows: list[Any]) -> None:
        starts, counts, slots = rows
        native.recur(
            out, given["query"], given["key"], given["value"], given["decay"], given.get("beta"),
            key_heads, state=state, starts=starts, counts=counts, slots=slots, **way,
        )  # fmt: skip

    steps = Steps(cuts, inputs)
    got = steps.run(kernel, heads * value_dim, dtype)
    for one in steps.sequences():
        sequence = {name: value[one] for name, value in inputs.items()}
        exact = recurrence(sequence, way, heads, key_heads).flatten(1)
        size = float(exact.abs().max()) + 1
        assert_within(got[one], exact, exact.abs() * ROUNDING[dtype] + size * 2e-5)


GOOD_CONVOLUTION: dict[str, Any] = {
    "out": torch.zeros(3, 8),
    "x": torch.zeros(3, 8),
    "weight": torch.zeros(4, 8),
    "bias": torch.zeros(8),
    "activation": "silu",
    "state": torch.zeros(2, 3, 8),
    "starts": np.array([0, 5]),
    "counts": np.array([2, 1]),
    "slots": np.array([1, 0]),
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weight": torch.zeros(1, 8)}, "taps"),
        ({"weight": torch.zeros(9, 8)}, "taps"),
        ({"weight": torch.zeros(4, 7)}, "weight"),
        ({"bias": torch.zeros(7)}, "bias"),
        ({"activation": "selu"}, "activation"),
        ({"state": torch.zeros(2, 2, 8)}, "state"),
        ({"state": torch.zeros(2, 3, 8, dtype=torch.bfloat16)}, "state"),
        ({"out": torch.zeros(3, 9)}, "out"),
        ({"slots": np.array([2, 0])}, "slots"),
        ({"slots": np.array([-1, 0])}, "slots"),
        ({"starts": np.array([-1, 0])}, "starts"),
        ({"counts": np.array([2, 2])}, "counts"),
        ({"counts": np.array([1, 1])}, "counts"),
        ({"counts": np.array([3, 0])}, "counts"),
    ],
)
def test_wrong_arguments_of_a_convolution_are_named(changes: dict[str, Any], named: str) -> None:
    native.convolve(**GOOD_CONVOLUTION)
    with pytest.raises(ValueError, match=named):
        native.convolve(**GOOD_CONVOLUTION | changes)


GOOD_RECURRENCE: dict[str, Any] = {
    "out": torch.zeros(3, 12),
    "query": torch.zeros(3, 10),
    "key": torch.zeros(3, 10),
    "value": torch.zeros(3, 12),
    "decay": torch.zeros(3, 4),
    "beta": torch.zeros(3, 4),
    "key_heads": 2,
    "decay_bias": None,
    "decay_scale": torch.zeros(4),
    "softplus": True,
    "low": 0.0,
    "high": 1.0,
    "scaled": False,
    "skip": None,
    "normalize": False,
    "scaling": 1.0,
    "state": torch.zeros(2, 4, 5, 3),
    "starts": np.array([0, 5]),
    "counts": np.array([2, 1]),
    "slots": np.array([1, 0]),
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"key_heads": 0}, "key_heads"),
        ({"key_heads": 3}, "key_heads"),
        ({"query": torch.zeros(3, 9)}, "query|key"),
        ({"key": torch.zeros(3, 12)}, "key"),
        ({"value": torch.zeros(3, 13)}, "value|out"),
        ({"beta": torch.zeros(3, 3)}, "beta"),
        ({"beta": torch.zeros(2, 4)}, "rows"),
        ({"decay": torch.zeros(3, 4, dtype=torch.bfloat16)}, "bfloat16"),
        ({"decay_scale": torch.zeros(3)}, "decay_scale"),
        ({"skip": torch.zeros(3)}, "skip"),
        ({"low": 2.0}, "low"),
        ({"state": torch.zeros(2, 4, 5, 4)}, "state"),
        ({"slots": np.array([2, 0])}, "slots"),
    ],
)
def test_wrong_arguments_of_a_recurrence_are_named(changes: dict[str, Any], named: str) -> None:
    native.recur(**GOOD_RECURRENCE)
    with pytest.raises(ValueError, match=named):
        native.recur(**GOOD_RECURRENCE | changes)
