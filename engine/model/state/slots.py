"""StateSlots: the memory of states, with a slot for each running sequence."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


class StateSlots:
    """States by key, each a matrix with a row for each slot.

    The shape of a key's state is known when a module first produces one, and its memory is
    allocated then.

    Args:
        num_slots: slots of running sequences and snapshots; 0 records only sizes.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._states: dict[Hashable, Tensor] = {}

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of all known states of one sequence."""
        return sum(state[:1].nbytes for state in self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def meet(self, key: Hashable, states: Tensor) -> None:
        """Allocate memory for states of this shape, [R, ...], if there is none.

        Raises:
            ValueError: the state of this key had another shape before.
        """
        known = self._states.get(key)
        if known is None:
            size = (max(self._num_slots, 1), *states.shape[1:])
            device = states.device if self._num_slots else torch.device("meta")
            self._states[key] = torch.zeros(size, dtype=states.dtype, device=device)
        elif known.shape[1:] != states.shape[1:]:
            raise ValueError(
                f"the state {key} was {list(known.shape[1:])} and is {list(states.shape[1:])}"
            )

    def room(self, key: Hashable, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate the states of a new key: [slots, *shape]."""
        self.meet(key, torch.empty(1, *shape, dtype=dtype, device=device))
        return self._states[key]

    def like(self, other: StateSlots, key: Hashable) -> None:
        """Allocate a state with the shape of another's."""
        self.meet(key, other._states[key])

    def get(self, key: Hashable, slots: Tensor) -> Tensor:
        """Copies of the states in some slots, [R, ...]."""
        return self._states[key].index_select(0, slots)

    def put(self, key: Hashable, slots: Tensor, states: Tensor) -> None:
        """Store states, [R, ...], in some slots, [R], in the type of the first ones."""
        known = self._states[key]
        known.index_copy_(0, slots, states.to(known.dtype))

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy all states of some slots to others: (source, target); no target is a source."""
        for states in self._states.values():
            for source, target in pairs:
                states[target] = states[source]
