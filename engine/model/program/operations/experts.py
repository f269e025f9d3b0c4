"""Experts: a mixture of experts, chosen by the logits of a router.

transformers has one interface for experts (`use_experts_implementation`): a module with the weights
of all experts in tensors of three dimensions, whose inputs are rows, the experts of each row, and
their weights. The parameter names are those that its own grouped products use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from engine.model.program.activations import ACTIVATIONS, guess_activation
from engine.model.program.agree import agree
from engine.model.program.capture import NUM_TOKENS, Call, tensors_in
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.elementwise import Beside
from engine.model.program.operations.kerneled import Emitter, Numbers, Weighted, wide
from engine.model.program.operations.linear import Linear
from engine.model.program.pack import Packer, Product, side_by_side
from engine.model.program.provenance import CASTS, Provenance, address_of
from engine.model.program.reading import Reading
from engine.model.program.routing import Routed, Routing, guess_routing, settled
from engine.model.program.unreadable import UnreadableError

# Rows on which a router is tried beside the recorded ones, and recorded rows on which a guess of
# the experts' computation is tried.
_TRIED, _COMPARED = 256, 3
# How many bfloat16 numbers sum to one float32 number.
_PARTS = 3
# Columns of a trial, half of them gates.
_COLUMNS = 8
# Beyond any limit.
_FAR = 1e6

Gate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Gating:
    """activation(min(gate, limit)) * (up within [-limit, limit], + shift).

    Attributes:
        interleaved: whether gates and ups alternate, rather than all gates before all ups.
    """

    interleaved: bool
    activation: str
    limit: float = math.inf
    shift: float = 0.0

    def split(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """Split [experts, features] or [experts, features, columns] into gates and ups."""
        if self.interleaved:
            return fused[:, ::2], fused[:, 1::2]
        gate, up = fused.chunk(2, 1)
        return gate, up

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return ACTIVATIONS[self.activation](gate) * (up + self.shift)


@dataclass(eq=False)
class Experts(Weighted):
    """A mixture of experts: the weighted sum of the results of each row's chosen experts.

    Attributes:
        logits: logits of the router, one column for each expert, in float32.
        weights: gate, up and down, or up and down: [experts, features, columns] each.
        biases: [experts, features], one for each weight, or none.
        activation: activation of up, without a gate.
        gating: how gate and up are combined; None without a gate.
    """

    parts: ClassVar[tuple[type, ...]] = (Gating, Routing)
    may_sample: ClassVar[bool] = True
    out: Value
    x: View
    logits: View
    routing: Routing
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    activation: str
    gating: Gating | None

    def in_float32(self, out: bool) -> list[View]:
        """See `Operation.in_float32`. Rounded logits would choose other experts."""
        return [self.logits]

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack the products up and down of all experts in sequence; up as of `Gated`, if there is
        a gate.
        """
        *ups, down = self.weights
        _, width, inner = down.shape
        packed = [packer.pack_each(ones) for ones in (ups, [down])]
        biases: list[Tensor | None] = [None, None]
        if self.biases:
            *firsts, last = (bias.float() for bias in self.biases)
            columns = (tuple(one[:, None] for one in ones) for ones in zip(*firsts, strict=True))
            biases = [torch.cat([side_by_side(one).flatten() for one in columns]), last.flatten()]
        packer.give_up(self)
        (up, up_how), (low, low_how) = packed
        return Product(up, biases[0], up_how, 0, inner), Product(low, biases[1], low_how, 0, width)

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        (up, down), routing, gating = products, self.routing, self.gating
        experts = to.native.Experts(
            experts=self.logits.columns,
            chosen=routing.chosen,
            score=routing.score,
            correction=routing.correction,
            groups=routing.groups,
            kept_groups=routing.kept,
            group_best=routing.best,
            normalised=routing.normalised,
            scale=routing.scale,
            factors=routing.factors,
            width=down.columns,
            inner=up.columns,
            up=up.weight,
            up_bias=up.bias,
            gated=gating is not None,
            activation=self.activation,
            limit=math.inf if gating is None else gating.limit,
            shift=0.0 if gating is None else gating.shift,
            down=down.weight,
            down_bias=down.bias,
            up_quantization=up.how,
            down_quantization=down.how,
        )
        to.program.experts(to.place_of(self.out), to.place(self.x), to.place(self.logits), experts)

    def compute(self, of: Numbers) -> Tensor:
        """See `Kerneled.compute`."""
        x = of(self.x)
        index, weight = self.routing.choose(of(self.logits))
        total = torch.zeros_like(wide(x))
        for expert in sorted(set(index.flatten().tolist())):
            rows, places = (index == expert).nonzero(as_tuple=True)
            given = wide(self.compute_expert(x[rows], expert))
            total.index_add_(0, rows, (weight[rows, places, None] * given).to(total.dtype))
        return total

    def compute_expert(self, x: Tensor, expert: int) -> Tensor:
        """Compute one expert on rows [rows, columns], or on one row, in their type."""

        def product(x: Tensor, at: int) -> Tensor:
            bias = self.biases[at][expert].to(x.dtype) if self.biases else None
            return F.linear(x, self.weights[at][expert].to(x.dtype), bias)

        if self.gating is None:
            return product(ACTIVATIONS[self.activation](product(x, 0)), 1)
        return product(self.gating(product(x, 0), product(x, 1)), 2)


def holds_experts(module: nn.Module) -> bool:
    """Whether a module follows transformers' interface for experts."""
    return all(hasattr(module, name) for name in ("_apply_gate", "has_gate", "is_transposed"))


def are_experts(inputs: list[Tensor]) -> bool:
    """Whether a module's inputs are rows, with experts and a weight for each of them."""
    if len(inputs) != 3:
        return False
    _, index, weight = inputs
    return index.dtype == torch.int64 and index.ndim == 2 and index.shape == weight.shape


def read_experts(
    reading: Reading, call: Call, output: Tensor, out: Value
) -> list[Operation] | None:
    """The product of the router, and the experts.

    Raises:
        UnreadableError: our kernels do not compute one of them.
    """
    module, provenance = call.target, reading.provenance
    if not (isinstance(module, nn.Module) and reading.with_experts and are_experts(call.inputs)):
        return None
    rows, index, weight = call.inputs
    # Most layers route alike.
    before = (one.routing for one in provenance.operations if isinstance(one, Experts))
    hint = next(before, None)
    x = provenance.view(rows)
    weights, biases, gating, activation = _weights(module)
    if weights[-1].shape[1:] != (x.columns, weights[0].shape[1]) or out.width != x.columns:
        raise UnreadableError("its matrices do not fit its rows")
    found = Experts(out, x, x, Routing(1, "softmax"), weights, biases, activation, gating)
    if not agree(_definition(found, index, weight), out.reference[:_COMPARED]):
        raise UnreadableError("its experts compute none of what was tried")
    for router in _routers(index, weight, len(weights[0]), provenance):
        product = _logits(router, provenance, weights[0].dtype)
        if product is None:
            continue
        routed = Routed(product.out.reference, index, weight)
        tried = _tried(router, product, index, weight)
        everything = Routed(
            *(
                torch.cat([getattr(one, name) for one in (routed, *tried)])
                for name in ("logits", "index", "weight")
            )
        )
        routing = guess_routing(everything, router.numbers, hint)
        if routing is not None:
            product.out.reference = settled(routing, routed)
            found.routing = routing
            found.logits = View(product.out, 0, product.out.width)
            return [*_in_type(product, weights[0].dtype), found]
    raise UnreadableError("its router chooses by none of what was tried")


def _weights(
    module: nn.Module,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Gating | None, str]:
    """The weights [experts, features, columns] and biases [experts, features] of gate, up and down,
    or of up and down; how gate and up are combined; and the activation.
    """
    held = {name: one.detach() for name, one in module.named_parameters(recurse=False)}
    fused = held.get("gate_up_proj", held.get("up_proj"))
    down = held.get("down_proj")
    name = "gate_up_proj" if "gate_up_proj" in held else "up_proj"
    has_bias = f"{name}_bias" in held
    known = {name, "down_proj"} | ({f"{name}_bias", "down_proj_bias"} if has_bias else set())
    if fused is None or down is None or fused.ndim != 3 or down.ndim != 3 or known != set(held):
        raise UnreadableError("it has other parameters than experts have")
    if getattr(module, "has_post_expert_norm", False):
        raise UnreadableError("its experts have norms")
    if getattr(module, "is_transposed", False):
        fused, down = fused.transpose(1, 2), down.transpose(1, 2)
    gating = activation = None
    if name == "gate_up_proj":
        gating = guess_gating(lambda x: cast(Any, module)._apply_gate(x))
        activation = None if gating is None else gating.activation
    else:
        activation = guess_activation(lambda x: cast(Any, module).act_fn(x))
    if activation is None:
        raise UnreadableError("our kernels do not have its activation")

    def parts(one: Tensor) -> tuple[Tensor, ...]:
        return (one,) if gating is None else gating.split(one)

    biases = (*parts(held[f"{name}_bias"]), held["down_proj_bias"]) if has_bias else ()
    return (*parts(fused), down), biases, gating, activation


def _definition(experts: Experts, index: Tensor, weight: Tensor) -> Tensor:
    """Compute the experts on the first recorded rows: [rows, columns] float64."""
    sums = []
    for row in range(_COMPARED):
        x = experts.x.reference[row]
        total = torch.zeros(experts.out.width, dtype=torch.float64, device=x.device)
        for expert, factor in zip(index[row].tolist(), weight[row].tolist(), strict=True):
            total += factor * experts.compute_expert(x, expert).double()
        sums.append(total)
    return torch.stack(sums)


def guess_gating(function: Gate) -> Gating | None:
    """The gating that a function of [rows, gates and ups] computes, if kernels have it."""
    for interleaved in (False, True):
        found = _guess(function, interleaved)
        if found is not None:
            return found
    return None


def _guess(function: Gate, interleaved: bool) -> Gating | None:
    def of(gate: Tensor, up: Tensor) -> Tensor:
        sides = [side[:, None].expand(-1, _COLUMNS // 2) for side in (gate, up)]
        rows = torch.stack(sides, -1).flatten(1) if interleaved else torch.cat(sides, -1)
        with torch.inference_mode():
            given = function(rows)
        if given.shape != sides[0].shape or not given.eq(given[:, :1]).all():
            return torch.full_like(gate, math.nan)
        return given[:, 0]

    def number(gate: float, up: float) -> float:
        return float(of(*(torch.tensor([side], dtype=torch.float64) for side in (gate, up)))[0])

    try:
        none, one, far, farther = (number(1, up) for up in (0, 1, _FAR, 2 * _FAR))
        factor = one - none
        shift = none / factor if factor else math.nan
        limit = far / factor - shift if factor and far == farther else math.inf
        gates = torch.linspace(-50, 50, 1001, dtype=torch.float64)
        trials = [(gates, torch.full_like(gates, up)) for up in (-30.0, -1.5, 0.0, 1.0, 2.5, 30.0)]
        given = torch.cat([of(*trial) for trial in trials])
    except Exception:  # it is not a function of these inputs
        return None
    for name in ACTIVATIONS:
        gating = Gating(interleaved, name, round(limit, 6), round(shift, 6))
        got = torch.cat([gating(*trial) for trial in trials])
        if torch.allclose(got, given, 1e-6, 1e-6):
            return gating
    return None


# The router


@dataclass(frozen=True, slots=True)
class _Router:
    """A product that may compute the logits of a router.

    Attributes:
        x: [rows, columns], the product's input.
        matrix: [experts, columns].
        numbers: [experts] each: biases of the product or of the choice.
    """

    call: Call
    x: Tensor
    matrix: Tensor
    numbers: list[Tensor]


def _routers(
    index: Tensor, weight: Tensor, experts: int, provenance: Provenance
) -> Iterator[_Router]:
    """The products with a row for each expert from which experts and weights were computed."""
    pending = [weight, index]
    seen: set[int] = set()
    numbers: dict[int, Tensor] = {}
    while pending:
        call = provenance.makers.get(address_of(pending.pop(0)))
        if call is None or id(call) in seen:
            continue
        seen.add(id(call))
        given = [_before_casts(one, provenance) for one in call.inputs]
        pending += given
        own = _held(call.target) if isinstance(call.target, nn.Module) else []
        around = [one for module in call.scope[-1:] for one in _held(module)]
        for one in (*own, *given, *around):
            if one.numel() == experts:
                numbers.setdefault(one.data_ptr(), one.detach().flatten())
        for matrix in (*own, *given):
            for x in given:
                if (
                    matrix.ndim == 2
                    and len(matrix) == experts
                    and x is not matrix
                    and x.shape[-1] == matrix.shape[1]
                    and x.numel() == NUM_TOKENS * matrix.shape[1]
                ):
                    yield _Router(call, x, matrix.detach(), list(numbers.values()))


def _held(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _before_casts(tensor: Tensor, provenance: Provenance) -> Tensor:
    """The source of a cast constant; values are returned unchanged."""
    while address_of(tensor) not in provenance.values:
        call = provenance.makers.get(address_of(tensor))
        # A cast to a tensor's own type returns the tensor itself.
        if call is None or call.name not in CASTS or tensor.dtype == call.args[0].dtype:
            break
        tensor = call.args[0]
    return tensor


def _logits(router: _Router, provenance: Provenance, dtype: torch.dtype) -> Linear | None:
    """The product that computes a router's logits.

    Args:
        dtype: type of the program.
    """
    experts = len(router.matrix)
    if router.matrix.dtype not in (dtype, torch.float32):
        return None
    view = provenance.view(router.x)
    recorded = _of_all_experts(router.call.output, NUM_TOKENS, experts)
    for bias in (None, *router.numbers):
        # Some float32 ones have been rounded to the program's type before.
        for kind in (recorded[0].dtype if recorded else torch.float32, dtype):
            got = _product(router.x, router.matrix, bias, kind).reshape(NUM_TOKENS, experts)
            for logits in recorded[:1] or [got]:
                if agree(got, logits):
                    reference = logits.to(kind).contiguous()
                    biases = () if bias is None else (bias,)
                    return Linear(Value(reference, False), view, (router.matrix,), biases)
    return None


def _in_type(product: Linear, dtype: torch.dtype) -> list[Operation]:
    """Convert a product to the program's type. A float32 matrix is a sum of up to three bfloat16
    matrices, each of the previous remainder, and the product multiplies all of them side by side.
    """
    (matrix,) = product.weights
    assert isinstance(matrix, Tensor)
    if matrix.dtype == dtype:
        return [product]
    parts, rest = [matrix.to(dtype)], matrix - matrix.to(dtype)
    while rest.any() and len(parts) < _PARTS:
        parts.append(rest.to(dtype))
        rest = rest - parts[-1]
    operations: list[Operation] = []
    x = product.x
    for _ in parts[1:]:
        joined = Value(torch.cat((x.reference, product.x.reference), dim=1), per_sample=False)
        operations.append(Beside(joined, x, product.x))
        x = View(joined, 0, joined.width)
    product.x, product.weights = x, (torch.cat(parts, dim=1),)
    return [*operations, product]


def _of_all_experts(output: Any, rows: int, experts: int) -> list[Tensor]:
    """The parts of an output that have a number for each row and expert, [rows, experts]."""
    return [
        one.reshape(rows, experts)
        for one in tensors_in(output)
        if one.is_floating_point() and one.numel() == rows * experts
    ]


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None, kind: torch.dtype) -> Tensor:
    return F.linear(x.to(kind), matrix.to(kind), None if bias is None else bias.to(kind))


def _tried(router: _Router, product: Linear, index: Tensor, weight: Tensor) -> list[Routed]:
    """The router's results for other rows, if it is a module that returns experts and weights.

    Few rows do not distinguish groups.
    """
    module, outputs = router.call.target, tensors_in(router.call.output)
    at = [
        i
        for wanted in (index, weight)
        for i, one in enumerate(outputs)
        if address_of(one) == address_of(wanted)
    ]
    if not isinstance(module, nn.Module) or len(at) != 2:
        return []
    columns = router.matrix.shape[1]
    generator = torch.Generator("cpu").manual_seed(0)
    rows = torch.randn(_TRIED, columns, generator=generator, device="cpu").to(router.x.device)
    rows = (rows * router.x.float().std()).to(router.x.dtype)
    shaped = rows.reshape(*(1,) * (router.x.ndim - 2), _TRIED, columns)
    args = tuple(shaped if one is router.x else one for one in router.call.args)
    with torch.no_grad():
        output = module(*args, **router.call.kwargs)
    bias = product.biases[0] if product.biases else None
    kind = product.out.reference.dtype
    logits = _product(rows, router.matrix, bias, kind)
    (logits, *_) = (*_of_all_experts(output, _TRIED, len(router.matrix)), logits)
    given = tensors_in(output)
    return [Routed(logits.to(kind), given[at[0]], given[at[1]])]
