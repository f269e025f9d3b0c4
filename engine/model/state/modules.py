"""StateModules: a model's modules that keep a state for each sequence, run group by group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from engine.batch.shape import ModelShape
from engine.model.attention.batch import PackedRows
from engine.model.state.cache import StateCache
from engine.model.state.groups import Group, gather, groups_of, scatter
from engine.model.state.probe import cache_argument, probe
from engine.model.state.slots import StateSlots

logger = logging.getLogger(__name__)


def find_states(
    model: PreTrainedModel, shape: ModelShape, max_num_seqs: int, num_snapshots: int
) -> StateModules | None:
    """Find the modules that keep states; None if a model only keeps keys and values.

    Args:
        shape: the traced model's shape.
        max_num_seqs, num_snapshots: see `StateModules`.
    """
    layers = model.config.get_text_config().num_hidden_layers
    if not shape.state_bytes and shape.num_layers >= layers:
        return None
    # A probe shows which layers attend.
    return StateModules(model, max_num_seqs, num_snapshots)


class StateModules:
    """Makes modules with states compute packed steps (selective batching, Orca, OSDI'22, section
    3).

    They are the modules that request a state from transformers' cache in a probe. Each is called
    once for each group of rows of equal length, with the states of those sequences. The rest of the
    model computes the packed step as usual.

    Args:
        max_num_seqs: number of sequences with a state.
        num_snapshots: number of further states.

    Attributes:
        slots: the memory of states.
        found: the modules that keep states, in order.
        arguments: further arguments for calls of the model.
        layers: numbers of the attention layers, in order.
    """

    def __init__(self, model: PreTrainedModel, max_num_seqs: int, num_snapshots: int) -> None:
        self.slots = StateSlots(max_num_seqs + num_snapshots)
        self._cache = StateCache(self.slots)
        self._groups: list[Group] = []
        self._computes = False  # whether any module is wrapped
        self._total = 0
        self._probed = StateSlots(1)
        cache = StateCache(self._probed)
        found = probe(model, cache)
        self._askers = cache.askers
        self._restarting = found.restarting
        self._model_name = type(model).__name__
        self.found = tuple(cache.askers)
        self.arguments: dict[str, Any] = {cache_argument(model): self._cache}
        self.layers = found.layers

    def wrap(self, modules: Iterable[nn.Module]) -> None:
        """Make these modules compute the rows that `begin` sets, from now on."""
        restarting: set[str] = set()
        for module in modules:
            self._computes = True
            restarts = type(module) in self._restarting
            if restarts:
                restarting.add(type(module).__name__)
            for key in self._askers[module]:
                self.slots.like(self._probed, key)
            module.forward = self._by_group(module, restarts)
        for name in sorted(restarting):
            logger.warning(
                "prompts of %s are computed token by token after their first chunk, because %s "
                "restarts with each chunk",
                self._model_name,
                name,
            )

    def begin(self, step: PackedRows, device: torch.device) -> None:
        """Set the rows of the next call of the model."""
        if self._computes:  # otherwise it would cost a step 12 us in vain
            self._groups = groups_of(step.index, step.starts, step.counts, device)
            self._total = len(step.input_ids)

    def _by_group(self, module: nn.Module, restarts: bool) -> Callable[..., Any]:
        forward: Callable[..., Any] = module.forward
        cache = {cache_argument(module): self._cache}

        def of_step(*args: Any, **kwargs: Any) -> Any:
            total, output = self._total, None
            if not any(one is self._cache for one in (*args, *kwargs.values())):
                kwargs |= cache
            for group in self._groups:
                goes_on = restarts and not group.sequences.are_new
                for one in group.tokenwise() if goes_on else (group,):
                    with self._cache.computing(one.sequences):
                        part = forward(
                            *(gather(value, one.tokens, total) for value in args),
                            **{k: gather(value, one.tokens, total) for k, value in kwargs.items()},
                        )
                    output = scatter(output, part, one.tokens, total)
            return output

        return of_step
