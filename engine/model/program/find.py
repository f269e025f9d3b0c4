"""find_graph: determines the graph of a model's computation."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

from engine.batch.shape import ModelShape
from engine.model.attention.interface import Expansions
from engine.model.files.compact import CompactWeights
from engine.model.program.capture import AttentionCall, Capture, Site, capture
from engine.model.program.graph import Graph
from engine.model.program.operations.experts import holds_experts
from engine.model.program.read import read
from engine.model.program.unreadable import UnreadableError
from engine.model.state.modules import StateModules

# The calls that torch repeats in the last model of a class that needed any. The small model that
# the gate reads first finds them one by one, a pass each (9 for Gemma 3n), which would take seconds
# each with billions of parameters.
_known: WeakKeyDictionary[type[PreTrainedModel], frozenset[Site]] = WeakKeyDictionary()


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

    Torch repeats what our kernels cannot compute: the smallest modules that contain something
    unreadable, and all others of their classes. Of a module that contains attention, it repeats the
    single call.

    Args:
        max_positions: number of served positions.
        states: the modules that keep states, if there are any.
        with_experts: whether experts can be operations; else the modules around them stay.
        compact: the model's parameters that have numbers only during use, if any.
        expansions: expansions by layer number, of the layers that store latents.

    Raises:
        UnreadableError: something unreadable cannot be repeated.
    """
    opaque: tuple[type[nn.Module], ...] = ()
    sites: frozenset[Site] = frozenset()
    known = _known.get(type(model), frozenset())
    experts = {type(module) for module in model.modules() if holds_experts(module)}
    while True:
        modules = experts.union(opaque)
        recorded = capture(
            model,
            shape,
            modules,
            sites,
            max_positions,
            states,
            expansions,
            None if compact is None else compact.dtype,
        )
        try:
            graph = read(recorded, frozenset(opaque), sites, max_positions, with_experts, compact)
        except UnreadableError as error:
            module = _next_opaque(recorded, error, opaque)
            site = None if error.call is None else error.call.site
            if module is not None:
                opaque += (module,)
            elif site is not None and site not in sites:
                sites |= known if site in known else {site}
            elif known and known <= sites:
                # They may be the reason.
                opaque, sites, known = (), frozenset(), frozenset()
            else:
                raise
        else:
            if sites:
                _known[type(model)] = sites
            return graph, recorded


def _next_opaque(
    recorded: Capture, error: UnreadableError, opaque: tuple[type[nn.Module], ...]
) -> type[nn.Module] | None:
    """The class of the smallest module around an unreadable call; None if all attend."""
    attending = {
        type(module)
        for call in recorded.calls
        if isinstance(call.target, AttentionCall)
        for module in call.scope
    }
    for module in reversed(error.scope):
        if type(module) not in opaque and type(module) not in attending:
            return type(module)
    return None
