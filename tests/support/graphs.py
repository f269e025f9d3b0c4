"""Graphs of operations computed by their definitions, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.attention.torch_backend import TorchAttention
from engine.model.program.capture import Capture
from engine.model.program.forward import recorded_step
from engine.model.program.graph import Graph, Operation, View
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.kerneled import Kerneled, TorchStep
from engine.model.program.operations.norm import HeadNorm, normal
from engine.model.program.rotation import Rotation, rotate
from engine.model.state.slots import StateSlots


def evaluate(graph: Graph, recorded: Capture, values: dict[int, Tensor] | None = None) -> Tensor:
    """The logits of the recorded pass, [samples, vocab_size].

    Args:
        values: gets those of all operations, by the `id` of their value.
    """
    values = {} if values is None else values
    stored: dict[int, tuple[Tensor, Tensor]] = {}
    inputs = recorded.input_ids, recorded.position_ids, recorded.last_tokens
    step = TorchStep(
        recorded_step(inputs, block_size=len(recorded.input_ids)),
        recorded.input_ids.numpy(),
        TorchAttention(),
        parts=(),
        places=(),
        slots=StateSlots(1),
    )
    for operation in graph.operations:
        values[id(operation.out)] = _result(operation, values, stored, step)
    return values[id(graph.logits)]


def _result(
    operation: Operation,
    values: dict[int, Tensor],
    stored: dict[int, tuple[Tensor, Tensor]],
    step: TorchStep,
) -> Tensor:
    def of(view: View) -> Tensor:
        return values[id(view.value)][:, view.column : view.column + view.columns]

    inner = operation.definition
    if isinstance(inner, Opaque):
        rows = len(inner.out.reference)
        return inner.replay(rows, [*map(of, inner.inputs)], step.positions).double()
    if not isinstance(inner, Attend):
        assert isinstance(inner, Kerneled)
        return inner.run(of, step).double()
    if inner.key is not None:
        rotated = _heads(
            of(inner.key), inner.kv_heads, inner.key_rotation, inner.key_norm, step.positions
        )
        if inner.value is None:  # it is in the key
            values_of = rotated[..., : inner.out.width // inner.heads]
        else:
            values_of = _heads(of(inner.value), inner.kv_heads)
        stored[inner.layer] = rotated, values_of
    return _attention(inner, of(inner.query), *stored[inner.layer], step.positions)


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
