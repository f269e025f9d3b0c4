"""StateCache: stands in for transformers' cache in a model's modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.model.attention.interface import attends_next
from engine.model.state.slots import StateSlots


class StateKey(NamedTuple):
    """Identifies a state: a layer may have several, and each several parts."""

    kind: str
    layer: int
    part: int


class Sequences(NamedTuple):
    """The sequences that a module computes in one call.

    Attributes:
        slots: [R] int64 on the model's device.
        are_new: whether none of them has a state yet.
    """

    slots: Tensor
    are_new: bool


class StateCache:
    """Keeps the states of concurrent sequences, each in a slot.

    It has the methods of `transformers.Cache` that modules call. Keys and values pass through it,
    because attention stores them (`engine.model.attention.interface`). States are copied out of
    their slots for the sequences that a module computes (`computing`), and back afterwards, because
    a module may change its inputs in place.

    Attributes:
        askers: the modules that requested a state while watched, in order, and which states.
    """

    # Attributes that transformers reads from any cache. None of them is the number of past tokens:
    # the model receives positions.
    layers = ()
    is_compileable = False
    is_initialized = True
    is_sliding = (False,)

    def __init__(self, slots: StateSlots) -> None:
        self._slots = slots
        self._sequences: Sequences | None = None
        self._handed: dict[StateKey, Tensor] = {}
        self._stack: list[nn.Module] = []
        self.askers: dict[nn.Module, set[StateKey]] = {}

    @contextmanager
    def computing(self, sequences: Sequences) -> Iterator[None]:
        """Provide the states of these sequences, and store the updated ones."""
        self._sequences = sequences
        try:
            yield
            for key, state in self._handed.items():
                self._slots.put(key, sequences.slots, state)
        finally:
            self._sequences = None
            self._handed.clear()

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record which of a model's modules request states."""

        def enter(module: nn.Module, arguments: object) -> None:
            self._stack.append(module)

        def leave(module: nn.Module, arguments: object, output: object) -> None:
            self._stack.pop()

        hooks = []
        for module in model.modules():
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._stack.clear()

    # Methods for attention.

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return attends_next(layer, key, value)

    def get_seq_length(self, layer: int = 0) -> int:
        return 0

    def get_max_length(self, layer: int | None = None) -> int:
        return -1

    def get_query_offset(self, layer: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer: int = 0) -> tuple[int, int]:
        return query_length, 0

    # Methods for states.

    def is_recording_past(self, layer: int) -> bool:
        return False

    def has_previous_state(self, layer: int | None = None, part: int | None = None) -> bool:
        return self._sequences is not None and not self._sequences.are_new

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._get(StateKey("convolution", layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._get(StateKey("recurrence", layer_idx, state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Store the last inputs of a convolution.

        Returns:
            the stored ones followed by the new ones; if none are stored, zeros replace the missing
            ones.
        """
        key = StateKey("convolution", layer_idx, state_idx)
        size = conv_kernel_size or conv_states.shape[-1]
        past = self._get(key)
        if past is None:
            missing = max(size - conv_states.shape[-1], 0)
            full = torch.nn.functional.pad(conv_states, (missing, 0))
        else:
            full = torch.cat([past, conv_states], dim=-1)
        self._set(key, full[..., -size:])
        return full

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        self._set(StateKey("recurrence", layer_idx, state_idx), recurrent_states)
        return recurrent_states

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        return self._get(StateKey("linear attention", layer_idx, 0))

    def set_linear_cache(self, layer_idx: int, state: Tensor) -> None:
        self._set(StateKey("linear attention", layer_idx, 0), state)

    def _get(self, key: StateKey) -> Tensor | None:
        self._note(key)
        if not self.has_previous_state():
            return self._handed.get(key)
        assert self._sequences is not None
        if key not in self._handed:
            self._handed[key] = self._slots.get(key, self._sequences.slots)
        return self._handed[key]

    def _set(self, key: StateKey, state: Tensor) -> None:
        self._note(key)
        self._slots.meet(key, state)
        if self._sequences is not None:
            self._handed[key] = state

    def _note(self, key: StateKey) -> None:
        if self._stack:
            self.askers.setdefault(self._stack[-1], set()).add(key)
