"""StateModules: the modules of a model that keep a state of each sequence, run group by group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.model.batch import PackedRows
from engine.model.state.cache import StateCache
from engine.model.state.groups import Group, groups_of, put, take
from engine.model.state.probe import cache_argument, probe
from engine.model.state.slots import StateSlots

logger = logging.getLogger(__name__)


class StateModules:
    """Lets modules with states compute packed steps (selective batching, Orca, OSDI'22, section 3).

    They are those that ask transformers' cache for a state in a probe. Each is called once for each
    group of equally long rows, with the states of those sequences. All else of the model computes
    the packed step as ever.

    Args:
        model: its modules are changed: from now on they compute what `begin` was told of.
        max_num_seqs: sequences that have a state at once.
        num_snapshots: states that are kept beside those.

    Attributes:
        arguments: what to call the model with besides.
        layers: the numbers of those that attend, in order.
    """

    def __init__(self, model: PreTrainedModel, max_num_seqs: int, num_snapshots: int) -> None:
        self._slots = StateSlots(max_num_seqs + num_snapshots)
        self._cache = StateCache(self._slots)
        self._groups: list[Group] = []
        self._total = 0
        found = probe(model, self._cache)
        self.arguments: dict[str, Any] = {cache_argument(model): self._cache}
        self.layers = found.layers
        for module in self._cache.askers:
            restarts = type(module) in found.restarting
            module.forward = self._by_group(module.forward, restarts)
        names = sorted({type(module).__name__ for module in self._cache.askers})
        logger.info("%s keeps states in %s", type(model).__name__, ", ".join(names))
        for name in sorted(one.__name__ for one in found.restarting):
            logger.warning(
                "prompts of %s are computed token by token after their first chunk, because %s "
                "starts anew with each chunk",
                type(model).__name__,
                name,
            )

    def begin(self, step: PackedRows, device: torch.device) -> None:
        """Say which rows the model is called for next."""
        self._groups = groups_of(step.index, step.starts, step.counts, device)
        self._total = len(step.input_ids)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy states from slot to slot: (source, target)."""
        self._slots.copy(pairs)

    def _by_group(self, forward: Callable[..., Any], restarts: bool) -> Callable[..., Any]:
        def of_step(*args: Any, **kwargs: Any) -> Any:
            total, output = self._total, None
            for group in self._groups:
                goes_on = restarts and not group.sequences.are_new
                for one in group.tokenwise() if goes_on else (group,):
                    with self._cache.computing(one.sequences):
                        part = forward(
                            *(take(value, one.tokens, total) for value in args),
                            **{k: take(value, one.tokens, total) for k, value in kwargs.items()},
                        )
                    output = put(output, part, one.tokens, total)
            return output

        return of_step
