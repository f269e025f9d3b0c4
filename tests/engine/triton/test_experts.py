"""Experts on a GPU against their definition, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from engine.model.gpu.launches import way_of
from engine.model.program.activations import ACTIVATIONS
from engine.model.program.operations.experts import Gating
from engine.model.program.routing import Routing
from engine.triton import experts as kernels
from engine.triton.experts import (
    ExpertWeights,
    experts,
    group_for,
    num_tiles,
    room_for,
    route,
    sort,
)
from tests.support.framed import DEVICE, in_any_order


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


ROUTINGS = [
    (Routing(2, "softmax"), 8),
    (Routing(3, "softmax", normalised=False, scale=2.5), 7),
    (Routing(6, "sigmoid", random(160, seed=1).abs(), 8, 3, 2, scale=2.5), 160),
    (Routing(2, "softmax", None, 4, 2, 1), 12),
    (Routing(1, "sigmoid", normalised=False), 16),
    (Routing(8, "softmax", factors=random(128, seed=2)), 128),
    (Routing(4, "softmax"), 60),
]


@pytest.mark.parametrize(("routing", "number"), ROUTINGS)
def test_rows_are_routed_by_the_definition(routing: Routing, number: int) -> None:
    logits, rows = random(5, number, seed=3), torch.zeros(5, dtype=torch.int32, device=DEVICE)
    if routing.groups == 1:  # of equal experts the first is chosen; of equal groups torch has any
        logits[1] = logits[1].round()
        logits[2] = 0
    rows[3] = -1
    index = torch.empty(5 * routing.chosen, dtype=torch.int32, device=DEVICE)
    weight = torch.empty(5 * routing.chosen, device=DEVICE)
    route(index, weight, logits, rows, way_of(routing))
    expected, weights = routing.choose(logits)
    expected[3] = -1
    assert index.view(5, -1).tolist() == expected.tolist()
    kept = [0, 1, 2, 4]
    torch.testing.assert_close(
        weight.view(5, -1)[kept].double(), weights[kept], atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("number", [1, 5, 60])
@pytest.mark.parametrize("entries", [1, 3, 130])
@pytest.mark.parametrize("rows", [16, 64])
def test_each_entry_is_in_one_tile_of_its_expert(
    number: int, entries: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_SCANNED", 32)
    generator = torch.Generator().manual_seed(entries)
    index = torch.randint(-1, number, (entries,), generator=generator).int().to(DEVICE)
    order = torch.full((entries,), -7, dtype=torch.int32, device=DEVICE)
    tiles = torch.full((num_tiles(entries, number, rows), 3), -7, dtype=torch.int32, device=DEVICE)
    sort(order, tiles, index, number, rows)
    found: dict[int, list[int]] = {}
    for expert, begin, count in tiles.tolist():
        assert -1 <= expert < number
        if expert >= 0:
            assert 1 <= count <= rows
            found.setdefault(expert, []).extend(order[begin : begin + count].tolist())
    expected = {e: (index == e).nonzero().flatten().tolist() for e in range(number)}
    assert found == {e: entries for e, entries in expected.items() if entries}


GATED = Gating(False, "silu")
CLAMPED = Gating(True, "quick_gelu", 2.0, 1.0)


def weights_of(
    number: int, width: int, inner: int, gating: Gating | None, dtype: torch.dtype, biased: bool
) -> tuple[ExpertWeights, str]:
    """Matrices as models have them: gates and ups fused, in turns where the gating says so."""
    lines = inner if gating is None else 2 * inner
    fused, down = (
        random(number, *shape, seed=seed, dtype=dtype) / math.sqrt(shape[1])
        for seed, shape in ((4, (lines, width)), (5, (width, inner)))
    )
    parts = (fused,) if gating is None else gating.split(fused)
    biases = ()
    if biased:
        both = random(number, lines, seed=6)
        some = (both,) if gating is None else gating.split(both)
        biases = (*(one.contiguous() for one in some), random(number, width, seed=7))
    if gating is None:
        return ExpertWeights(None, fused, down, biases, "relu2"), "relu2"
    return ExpertWeights(
        *parts, down, biases, gating.activation, gating.limit, gating.shift
    ), gating.activation


def definition(
    x: Tensor, index: Tensor, weight: Tensor, given: ExpertWeights, gating: Gating | None
) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    biases: Any = given.biases or (0.0,) * 3

    def product(x: Tensor, matrix: Tensor, bias: Any, e: int) -> Tensor:
        own = bias[e].double() if isinstance(bias, Tensor) else bias
        return matrix[e].double() @ x.double() + own

    for row, (chosen, factors) in enumerate(zip(index.tolist(), weight.tolist(), strict=True)):
        for e, factor in zip(chosen, factors, strict=True):
            if e < 0:
                continue
            if given.gate is None:
                inner = ACTIVATIONS[given.activation](product(x[row], given.up, biases[0], e))
            else:
                assert gating is not None
                inner = gating(
                    product(x[row], given.gate, biases[0], e),
                    product(x[row], given.up, biases[1], e),
                )
            out[row] += factor * product(inner, given.down, biases[-1], e)
    return out


@pytest.mark.parametrize("gating", [GATED, CLAMPED, None], ids=["gated", "clamped", "plain"])
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_experts_are_what_they_are_defined_as(
    gating: Gating | None, tokens: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(gating, tokens, biased, torch.float32, 2e-6)
    if tokens > 1:
        monkeypatch.setattr(kernels, "_MANY", 1)  # tiles of many rows
        check(gating, tokens, biased, torch.float32, 2e-6)


def test_experts_in_bfloat16_stay_within_its_rounding() -> None:
    check(GATED, 20, False, torch.bfloat16, 0.02)


def check(
    gating: Gating | None, tokens: int, biased: bool, dtype: torch.dtype, most: float
) -> None:
    number, width, inner = 5, 72, 40
    routing = Routing(2, "softmax")
    given, _ = weights_of(number, width, inner, gating, dtype, biased)
    x, logits = random(tokens, width, seed=8, dtype=dtype), random(tokens, number, seed=9)
    rows = torch.zeros(tokens, dtype=torch.int32, device=DEVICE)
    rows[3::7] = -1
    room = room_for(2 * tokens + 6, number, inner, width, dtype, DEVICE)
    # What other steps left there must not matter, not even a NaN.
    room = replace(room, made=room.made.fill_(math.nan), inner=room.inner.fill_(math.nan))
    out = torch.full_like(x, math.nan)
    with in_any_order(tokens):
        experts(out, x, logits, rows, way_of(routing), given, room)
    index, weight = routing.choose(logits)
    index[rows < 0] = -1
    expected = definition(x, index, weight, given, gating)
    assert (out[rows < 0] == 0).all()
    scale = expected.square().mean().sqrt()
    assert float((out.double() - expected).abs().max() / scale) <= most * 8


def test_no_more_tiles_than_entries() -> None:
    assert num_tiles(8, 128, 16) == 8
    assert num_tiles(4096, 128, 64) == 64 + 128
    assert group_for(8, 128, 2, is_gated=True).rows == 16
    assert group_for(4096, 128, 2, is_gated=True).rows == 64
