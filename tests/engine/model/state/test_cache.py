"""Our cache gives modules the same as transformers' own does for each sequence alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from engine.model.state.cache import Sequences, StateCache
from engine.model.state.slots import StateSlots

KERNEL = 4


def convolve(cache: StateCache, slots: list[int], inputs: Tensor, *, are_new: bool) -> Tensor:
    with cache.computing(Sequences(torch.tensor(slots), are_new)):
        return cache.update_conv_state(inputs, 3, conv_kernel_size=KERNEL)


@pytest.mark.parametrize("cuts", [(9,), (2, 7), (1, 1, 7), (5, 1, 1, 1, 1)])
def test_a_convolutions_inputs_are_those_of_transformers(cuts: tuple[int, ...]) -> None:
    cache = StateCache(StateSlots(5))
    theirs = [LinearAttentionLayer() for _ in range(2)]
    inputs = torch.randn(2, 6, sum(cuts))
    for at, part in enumerate(inputs.split(cuts, dim=-1)):
        got = convolve(cache, [4, 1], part, are_new=at == 0)
        for row, layer in enumerate(theirs):
            expected = layer.update_conv_state(part[row : row + 1], conv_kernel_size=KERNEL)
            assert torch.equal(got[row : row + 1], expected)


def test_what_a_module_changes_in_place_is_kept() -> None:
    cache = StateCache(StateSlots(3))
    with cache.computing(Sequences(torch.tensor([2]), are_new=True)):
        assert cache.get_recurrent_state(0) is None
        cache.update_recurrent_state(torch.ones(1, 2, 2), 0)
    with cache.computing(Sequences(torch.tensor([2]), are_new=False)):
        state = cache.get_recurrent_state(0)
        assert state is not None
        state.mul_(5)
    with cache.computing(Sequences(torch.tensor([2, 0]), are_new=False)):
        state = cache.get_recurrent_state(0)
    assert state is not None
    assert state[0].eq(5).all()
    assert state[1].eq(0).all(), "another sequence's is untouched"


def test_a_new_sequence_has_no_state_whatever_its_slot_held() -> None:
    cache = StateCache(StateSlots(1))
    convolve(cache, [0], torch.ones(1, 2, 9), are_new=True)
    got = convolve(cache, [0], torch.full((1, 2, 2), 3.0), are_new=True)
    assert torch.equal(got, torch.tensor([[[0.0, 0, 3, 3]] * 2]))


def test_what_a_module_that_fails_has_changed_is_not_kept() -> None:
    cache = StateCache(StateSlots(1))
    convolve(cache, [0], torch.ones(1, 2, 4), are_new=True)

    def failing() -> None:
        with cache.computing(Sequences(torch.tensor([0]), are_new=False)):
            cache.update_conv_state(torch.zeros(1, 2, 4), 3, conv_kernel_size=KERNEL)
            raise ValueError("scripted")

    with pytest.raises(ValueError, match="scripted"):
        failing()
    with cache.computing(Sequences(torch.tensor([0]), are_new=False)):
        state = cache.get_conv_state(3)
    assert state is not None
    assert state.eq(1).all()


def test_states_keep_the_type_that_the_first_one_had() -> None:
    slots = StateSlots(2)
    cache = StateCache(slots)
    for dtype in (torch.float32, torch.bfloat16):
        with cache.computing(Sequences(torch.tensor([0]), are_new=True)):
            cache.update_recurrent_state(torch.ones(1, 3, dtype=dtype), 0)
    assert slots.get(next(iter(slots._states)), torch.tensor([0])).dtype == torch.float32
    assert slots.bytes_per_sequence == 12


def test_a_state_of_another_shape_is_an_error() -> None:
    cache = StateCache(StateSlots(1))
    cache.update_recurrent_state(torch.ones(1, 3), 0)
    with pytest.raises(ValueError, match=r"was \[3\] and is \[4\]"):
        cache.update_recurrent_state(torch.ones(1, 4), 0)


def test_without_slots_only_sizes_are_kept() -> None:
    slots = StateSlots(0)
    StateCache(slots).update_recurrent_state(torch.ones(1, 1000, dtype=torch.bfloat16), 0)
    assert slots.bytes_per_sequence == 2000
    assert all(state.is_meta for state in slots._states.values())


def test_copies_go_from_slot_to_slot_in_all_layers() -> None:
    slots = StateSlots(4)
    cache = StateCache(slots)
    for layer in (0, 1):
        with cache.computing(Sequences(torch.tensor([1]), are_new=True)):
            cache.update_recurrent_state(torch.full((1, 2), layer + 1.0), layer)
    slots.copy([(1, 3), (1, 0)])
    for layer in (0, 1):
        with cache.computing(Sequences(torch.tensor([0, 3, 2]), are_new=False)):
            state = cache.get_recurrent_state(layer)
        assert state is not None
        assert state[:, 0].tolist() == [layer + 1, layer + 1, 0]
