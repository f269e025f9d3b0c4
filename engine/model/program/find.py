"""find_graph: determines the graph of a model's computation."""

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
    """The graph of a model's computation, and the pass recorded for it.

    Modules that our kernels cannot compute stay as they are: the smallest ones that contain
    something unreadable, and all others of their classes. None of them may contain attention.

    Args:
        max_positions: number of served positions.
        states: the modules that keep states, if there are any.
        with_experts: whether experts can be operations; else the modules around them stay.
        compact: the model's parameters that have numbers only during use, if any.
        expansions: expansions by layer number, of the layers that store latents.

    Raises:
        UnreadableError: something unreadable is in no such module.
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
