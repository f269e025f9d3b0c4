"""StateSlots: the memory of states, a slot for each sequence that runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


class StateSlots:
    """States by key, each a matrix with a row for each slot.

    What a key's state looks like is known when a module first gives one, and its memory is taken
    then.

    Args:
        num_slots: of sequences that can run, and of snapshots; 0 keeps the sizes only.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._states: dict[Hashable, Tensor] = {}

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of all states of one sequence that are known of."""
        return sum(state[:1].nbytes for state in self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def meet(self, key: Hashable, states: Tensor) -> None:
        """Make room for a state that looks like these, [R, ...], unless there is.

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
        """The memory of a new key's states: [slots, *shape]."""
        self.meet(key, torch.empty(1, *shape, dtype=dtype, device=device))
        return self._states[key]

    def like(self, other: StateSlots, key: Hashable) -> None:
        """Make room for a state as another has it."""
        self.meet(key, other._states[key])

    def get(self, key: Hashable, slots: Tensor) -> Tensor:
        """Copies of the states in some slots, [R, ...]."""
        return self._states[key].index_select(0, slots)

    def put(self, key: Hashable, slots: Tensor, states: Tensor) -> None:
        """Store states, [R, ...], in some slots, [R], in the type that the first ones had."""
        known = self._states[key]
        known.index_copy_(0, slots, states.to(known.dtype))

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy all states of some slots to others: (source, target); no target is a source."""
        for states in self._states.values():
            for source, target in pairs:
                states[target] = states[source]
