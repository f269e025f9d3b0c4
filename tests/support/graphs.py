"""Graphs of operations computed by their definitions, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.by_torch import compute, normal
from engine.model.program.capture import Capture
from engine.model.program.graph import Graph, Operation, View
from engine.model.program.linear_attention import convolve, recur
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.convolve import Convolve
from engine.model.program.operations.elementwise import Beside, Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.kerneled import ByTorch
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import HeadNorm, Norm
from engine.model.program.operations.per_head import PerHead
from engine.model.program.operations.recur import Recur
from engine.model.program.rotation import Rotation, rotate


def evaluate(graph: Graph, recorded: Capture, values: dict[int, Tensor] | None = None) -> Tensor:
    """The logits of the recorded pass, [samples, vocab_size].

    Args:
        values: gets those of all operations, by the `id` of their value.
    """
    values = {} if values is None else values
    stored: dict[int, tuple[Tensor, Tensor]] = {}
    for operation in graph.operations:
        values[id(operation.out)] = _result(operation, values, stored, recorded)
    return values[id(graph.logits)]


def _result(
    operation: Operation,
    values: dict[int, Tensor],
    stored: dict[int, tuple[Tensor, Tensor]],
    recorded: Capture,
) -> Tensor:
    def of(view: View) -> Tensor:
        return values[id(view.value)][:, view.column : view.column + view.columns]

    match operation:
        case Embed(table=table, positions=positions):
            return table[recorded.position_ids if positions else recorded.input_ids].double()
        case Norm() | Linear() | Gated() | Elementwise() | Experts() | PerHead() | Beside():
            return compute(operation, of)
        case Attend():
            positions = recorded.position_ids
            if operation.key is not None:
                rotated = _heads(
                    of(operation.key),
                    operation.kv_heads,
                    operation.key_rotation,
                    operation.key_norm,
                    positions,
                )
                if operation.value is None:  # it is in the key
                    values_of = rotated[..., : operation.out.width // operation.heads]
                else:
                    values_of = _heads(of(operation.value), operation.kv_heads)
                stored[operation.layer] = rotated, values_of
            return _attention(operation, of(operation.query), *stored[operation.layer], positions)
        case Convolve(x=x, weight=weight, bias=bias, activation=activation):
            return ACTIVATIONS[activation](convolve(of(x), weight, bias))
        case Recur(beta=beta, way=way):
            inputs = (operation.query, operation.key, operation.value, operation.decay)
            return recur(*map(of, inputs), None if beta is None else of(beta), way)
        case Gather(x=x):
            return of(x)[recorded.last_tokens]
        case ByTorch(operation=inner):
            return _result(inner, values, stored, recorded)
        case Opaque(inputs=inputs, replay=replay):
            rows = len(operation.out.reference)
            return replay(rows, [*map(of, inputs)], recorded.position_ids).double()


def _heads(
    x: Tensor,
    count: int,
    rotation: Rotation | None = None,
    normed: HeadNorm | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """[heads, T, size], rotated and normed."""
    split = x.unflatten(1, (count, -1))
    if rotation is not None:
        cos, sin = (table[positions].double() for table in (rotation.cos, rotation.sin))
        split = rotate(split, cos, sin, rotation.interleaved, rotation.begin)
    return (split if normed is None else normal(split, normed)).transpose(0, 1)


def _attention(
    operation: Attend, query: Tensor, key: Tensor, value: Tensor, positions: Tensor
) -> Tensor:
    """
    Args:
        key, value: [kv_heads, T, size], as they were stored.
    """
    params = operation.params
    groups = operation.heads // operation.kv_heads
    q = _heads(query, operation.heads, operation.query_rotation, operation.query_norm, positions)
    k, v = (x.repeat_interleave(groups, 0) for x in (key, value))
    scores = q @ k.transpose(1, 2) * params.scaling
    if params.softcap is not None:
        scores = params.softcap * torch.tanh(scores / params.softcap)
    distance = torch.arange(len(query))[:, None] - torch.arange(len(query))
    seen = distance >= 0
    if params.window is not None:
        seen &= distance < params.window
    scores = scores.masked_fill(~seen, float("-inf"))
    if params.sinks is not None:
        sinks = params.sinks.double()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat((scores, sinks), dim=2)
    weights = scores.softmax(-1)[..., : len(query)]
    return (weights @ v).transpose(0, 1).flatten(1)


def only(kind: type, graph: Graph) -> list[Operation]:
    return [operation for operation in graph.operations if isinstance(operation, kind)]
