"""Experts against float64, and what they may depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.agree import agree
from engine.model.program.routing import Routing
from tests.support.native import kernels_or_skip

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("level")
every_level = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BF16 = torch.bfloat16
GUARD = 7.0


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = native.threads()
    native.set_threads(2)
    yield
    native.set_threads(before)


@dataclass(frozen=True)
class Layer:
    """Experts with gates or without, in the program's type; biases or none."""

    ups: tuple[Tensor, ...]
    down: Tensor
    biases: tuple[Tensor, ...]
    activation: str
    limit: float
    shift: float

    @classmethod
    def make(
        cls,
        *,
        experts: int = 6,
        width: int = 40,
        inner: int = 24,
        dtype: torch.dtype = BF16,
        gated: bool = True,
        biased: bool = False,
        activation: str = "silu",
        limit: float = math.inf,
        shift: float = 0.0,
    ) -> Layer:
        ups = tuple(random(experts, inner, width) / math.sqrt(width) for _ in range(1 + gated))
        down = random(experts, width, inner) / math.sqrt(inner)
        biases = (
            *(random(experts, inner) for _ in ups),
            random(experts, width),
        )
        return cls(
            tuple(up.to(dtype) for up in ups),
            down.to(dtype),
            biases if biased else (),
            activation,
            limit,
            shift,
        )

    def expert(self, x: Tensor, expert: int) -> Tensor:
        x = x.double()
        products = [
            functional.linear(x, up[expert].double(), self._bias(at, expert))
            for at, up in enumerate(self.ups)
        ]
        function = ACTIVATIONS[self.activation]
        if len(products) == 1:
            inner = function(products[0])
        else:
            gate, up = products[0].clamp(max=self.limit), products[1]
            inner = function(gate) * (up.clamp(-self.limit, self.limit) + self.shift)
        return functional.linear(inner, self.down[expert].double(), self._bias(-1, expert))

    def _bias(self, at: int, expert: int) -> Tensor | None:
        return self.biases[at][expert].double() if self.biases else None

    def native(self, routing: Routing) -> Any:
        experts, width, inner = self.down.shape
        up_bias = down_bias = None
        if self.biases:
            *ups, down = self.biases
            up_bias = torch.cat([turns([one[e, :, None] for one in ups]) for e in range(experts)])
            up_bias, down_bias = up_bias.flatten().contiguous(), down.flatten()
        return native.Experts(
            experts,
            routing.chosen,
            routing.score,
            routing.correction,
            routing.groups,
            routing.kept,
            routing.best,
            routing.normalised,
            routing.scale,
            routing.factors,
            width,
            inner,
            packed([turns([up[e] for up in self.ups]) for e in range(experts)]),
            up_bias,
            len(self.ups) == 2,
            self.activation,
            self.limit,
            self.shift,
            packed(list(self.down)),
            down_bias,
        )


def random(*shape: int) -> Tensor:
    return torch.randn(shape)


def turns(parts: list[Tensor]) -> Tensor:
    """Gates and ups, 16 of each in turn; a plain product's rows as they are."""
    if len(parts) == 1:
        return parts[0]
    padded = [
        functional.pad(one, (0, 0, 0, -len(one) % 16)).unflatten(0, (-1, 16)) for one in parts
    ]
    return torch.stack(padded, 1).flatten(0, 2)


def packed(matrices: list[Tensor]) -> Tensor:
    results = []
    for matrix in matrices:
        result = torch.empty(native.packed_size(*matrix.shape), dtype=matrix.dtype)
        native.pack_linear(matrix.contiguous(), result)
        results.append(result)
    return torch.cat(results)


def run(layer: Layer, routing: Routing, x: Tensor, logits: Tensor) -> Tensor:
    """The kernels' results for rows, by an instruction of a program."""
    rows, width = x.shape
    program = native.Program()
    columns = -(-width // 32) * 32
    given, out = (torch.full((max(rows, 1), columns + 5), GUARD, dtype=x.dtype) for _ in range(2))
    given[:rows, :width] = x
    buffers = [program.buffer(one) for one in (given, out, logits.contiguous())]
    views = [(buffer, 0, width) for buffer in buffers[:2]]
    program.experts(views[1], views[0], (buffers[2], 0, logits.shape[1]), layer.native(routing))
    zeros = np.zeros(rows, np.int64)
    step = native.Step(
        zeros, zeros, zeros, zeros, zeros + 1, np.zeros((rows, 1), np.int64), zeros[:0]
    )
    program.run(step, 0, 1)
    assert (out[:, width:] == GUARD).all()
    return out[:rows, :width].clone()


def definition(layer: Layer, routing: Routing, x: Tensor, logits: Tensor) -> Tensor:
    index, weight = routing.choose(logits)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, (experts, factors) in enumerate(zip(index.tolist(), weight.tolist(), strict=True)):
        for expert, factor in zip(experts, factors, strict=True):
            out[row] += factor * layer.expert(x[row], expert)
    return out


@st.composite
def routings(draw: st.DrawFn) -> tuple[int, Routing]:
    groups = draw(st.sampled_from((1, 1, 2, 4)))
    size = draw(st.integers(1 if groups == 1 else 2, 20))
    kept = draw(st.integers(1, groups))
    experts = groups * size
    best = draw(st.integers(1, min(2, size))) if groups > 1 else 1
    corrected = draw(st.booleans())
    return experts, Routing(
        chosen=draw(st.integers(1, min(kept * size, 8))),
        score=draw(st.sampled_from(("softmax", "sigmoid"))),
        correction=torch.randn(experts) / 4 if corrected else None,
        groups=groups,
        kept=kept,
        best=best,
        normalised=draw(st.booleans()),
        scale=draw(st.sampled_from((1.0, 2.5))),
        factors=torch.rand(experts) + 0.5 if draw(st.booleans()) else None,
    )


@every_level
@given(
    routed=routings(),
    rows=st.one_of(st.integers(0, 12), st.sampled_from((33, 70))),
    width=st.integers(1, 100),
    inner=st.integers(1, 70),
    dtype=st.sampled_from((BF16, torch.float32)),
    gated=st.booleans(),
    biased=st.booleans(),
    clipped=st.booleans(),
    activation=st.sampled_from(("silu", "gelu_tanh", "quick_gelu", "relu2")),
    seed=st.integers(0, 2**20),
)
def test_is_the_weighted_sum_of_those_chosen(
    routed: tuple[int, Routing],
    rows: int,
    width: int,
    inner: int,
    dtype: torch.dtype,
    gated: bool,
    biased: bool,
    clipped: bool,
    activation: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    experts, routing = routed
    limits = {"limit": 0.5, "shift": 1.0} if gated and clipped else {}
    layer = Layer.make(
        experts=experts,
        width=width,
        inner=inner,
        dtype=dtype,
        gated=gated,
        biased=biased,
        activation=activation,
        **limits,  # type: ignore[arg-type]
    )
    x, logits = random(rows, width).to(dtype), random(rows, experts)
    exact = definition(layer, routing, x, logits)
    got = run(layer, routing, x, logits)
    # A sum may be near 0 where its parts are not.
    scale = exact.norm(dim=-1).mean() if rows else 1.0
    error = (got.double() - exact).norm(dim=-1)
    tolerance = 3e-2 if dtype == BF16 else 1e-5
    assert (error <= tolerance * torch.clamp(exact.norm(dim=-1), min=float(scale))).all()


def case(rows: int = 9) -> tuple[Layer, Routing, Tensor, Tensor]:
    torch.manual_seed(3)
    return Layer.make(), Routing(2, "softmax"), random(rows, 40).to(BF16), random(rows, 6)


def test_a_row_depends_on_no_other_row_and_on_no_thread() -> None:
    layer, routing, x, logits = case(40)
    together = run(layer, routing, x, logits)
    native.set_threads(1)
    assert together.equal(run(layer, routing, x, logits))
    for row in range(0, 40, 13):
        one = slice(row, row + 1)
        assert together[one].equal(run(layer, routing, x[one], logits[one]))


def test_experts_that_nobody_chose_are_not_read() -> None:
    layer, routing, x, logits = case()
    expected = run(layer, routing, x, logits)
    broken = replace(layer, ups=tuple(up.clone() for up in layer.ups), down=layer.down.clone())
    logits[:, 3] = -100.0
    expected = run(layer, routing, x, logits)
    for one in (*broken.ups, broken.down):
        one[3] = math.nan
    assert run(broken, routing, x, logits).equal(expected)
    logits[4, 3] = 100.0
    got = run(broken, routing, x, logits)
    assert got[4].isnan().all()
    assert got[:4].equal(expected[:4])


def test_of_equal_experts_the_first_are_chosen() -> None:
    layer, routing, x, logits = case()
    logits[:] = torch.tensor([0.0, 1.0, 2.0, 1.0, 1.0, 0.0])
    expected = torch.stack([(weights(0.731, 0.269) @ both(layer, row)) for row in x])
    assert agree(run(layer, routing, x, logits), expected.to(BF16))


def weights(*factors: float) -> Tensor:
    return torch.tensor(factors, dtype=torch.float64)


def both(layer: Layer, row: Tensor) -> Tensor:
    return torch.stack([layer.expert(row, expert) for expert in (2, 1)])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_harms_no_other(number: float) -> None:
    layer, routing, x, logits = case()
    expected = run(layer, routing, x, logits)
    logits[4] = number
    x[5] = number
    got = run(layer, routing, x, logits)
    others = [row for row in range(9) if row not in (4, 5)]
    assert got[others].equal(expected[others])
    assert got[4:6].isnan().all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chosen": 7}, "chosen is 7; it must be at most 6"),
        ({"groups": 4}, "groups is 4, which does not divide 6"),
        ({"groups": 3, "kept": 4}, "kept_groups is 4; it must be at most 3"),
        ({"groups": 3, "best": 3}, "group_best is 3; it must be at most 2"),
        ({"groups": 6, "kept": 1}, "kept_groups is 1, too few for 2 experts"),
        ({"score": "tanh"}, "score is 'tanh'; it must be softmax or sigmoid"),
        ({"correction": torch.zeros(5)}, "correction has 5 numbers, not 6"),
        ({"factors": torch.ones(5)}, "factors has 5 numbers, not 6"),
    ],
)
def test_a_routing_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    layer, routing, *_ = case()
    with pytest.raises(ValueError, match=words):
        layer.native(replace(routing, **changes))


def test_weights_and_views_that_do_not_fit_are_refused() -> None:
    layer, routing, x, logits = case()
    with pytest.raises(ValueError, match="up has"):
        replace(layer, ups=tuple(up[:, :, :9] for up in layer.ups)).native(routing)
    with pytest.raises(ValueError, match="logits has 5 columns, not 6"):
        run(layer, routing, x, logits[:, :5])
    with pytest.raises(ValueError, match="x has 39 columns, not 40"):
        run(layer, routing, x[:, :39], logits)
    with pytest.raises(ValueError, match="x is float32, not bfloat16"):
        run(layer, routing, x.float(), logits)
    with pytest.raises(ValueError, match="limit, shift go with gates only"):
        replace(layer, ups=layer.ups[:1], limit=3.0).native(routing)
