"""find_graph: from a model to the graph of what it computes."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from engine.batch.shape import ModelShape
from engine.model.attention.interface import Expansions
from engine.model.compact import CompactWeights
from engine.model.program.capture import AttentionCall, Capture, capture
from engine.model.program.experts import holds_experts
from engine.model.program.graph import Graph
from engine.model.program.read import read
from engine.model.program.unreadable import UnreadableError
from engine.model.state.modules import StateModules


def find_graph(
    model: PreTrainedModel,
    shape: ModelShape,
    max_positions: int,
    states: StateModules | None = None,
    *,
    with_experts: bool = True,
    compact: CompactWeights | None = None,
    expansions: Expansions | None = None,
) -> tuple[Graph, Capture]:
    """What a model computes, and the pass that was recorded to find out.

    Modules that our kernels do not compute stay as they are. They are the smallest ones that hold
    what cannot be read, and all others of their classes. None of them may hold attention.

    Args:
        max_positions: how many positions are served.
        states: the modules that keep states, if there are any.
        with_experts: whether experts can be operations; else the modules around them stay.
        compact: the model's parameters that hold numbers only while they are used, if any do.
        expansions: those of the layers that store latents, by their numbers.

    Raises:
        UnreadableError: something cannot be read and lies in no such module.
    """
    opaque: tuple[type[nn.Module], ...] = ()
    experts = {type(module) for module in model.modules() if holds_experts(module)}
    while True:
        modules = experts.union(opaque)
        recorded = capture(model, shape, modules, max_positions, states, expansions)
        try:
            graph = read(recorded, frozenset(opaque), max_positions, with_experts, compact)
            return graph, recorded
        except UnreadableError as error:
            opaque += (_next_opaque(recorded, error, opaque),)


def _next_opaque(
    recorded: Capture, error: UnreadableError, opaque: tuple[type[nn.Module], ...]
) -> type[nn.Module]:
    attending = {
        type(module)
        for call in recorded.calls
        if isinstance(call.target, AttentionCall)
        for module in call.scope
    }
    for module in reversed(error.scope):
        if type(module) not in opaque and type(module) not in attending:
            return type(module)
    raise error
