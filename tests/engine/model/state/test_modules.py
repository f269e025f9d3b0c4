"""Which modules keep states, and what becomes of a model that has some."""

from __future__ import annotations

import logging

import pytest
import torch

from engine.model.state.cache import StateCache
from engine.model.state.probe import probe
from engine.model.state.slots import StateSlots
from engine.model.tracing.trace import trace
from tests.support.zoo import SERVED, STATEFUL, tiny_model

# What asks for states in each, which layers attend, and what starts anew with each chunk.
FOUND = {
    "lfm2": ("Lfm2ShortConv", (1,), set()),
    "qwen3_next": ("Qwen3NextGatedDeltaNet", (1,), set()),
    "minimax": ("MiniMaxLightningAttention", (1,), set()),
    "bamba": ("BambaMixer", (1,), set()),
    "mamba2": ("Mamba2Mixer", (), set()),
    "jamba": ("JambaMambaMixer", (1,), {"JambaMambaMixer"}),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_the_probe_finds_what_keeps_states(name: str) -> None:
    asks, layers, restarts = FOUND[name]
    cache = StateCache(StateSlots(2))
    found = probe(tiny_model(name), cache)
    assert {type(module).__name__ for module in cache.askers} == {asks}
    assert found.layers == layers
    assert {one.__name__ for one in found.restarting} == restarts


@pytest.mark.parametrize("name", STATEFUL)
def test_the_trace_knows_what_a_sequence_keeps(name: str) -> None:
    model = tiny_model(name, dtype=torch.bfloat16)
    shape = trace(type(model), model.config, torch.bfloat16).shape
    slots = StateSlots(1)
    probe(model, StateCache(slots))
    assert shape.state_bytes == slots.bytes_per_sequence > 0
    assert shape.num_layers == len(FOUND[name][1])


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_others_keep_none(name: str) -> None:
    assert name in SERVED
    model = tiny_model(name)
    assert trace(type(model), model.config, torch.float32).shape.state_bytes == 0


def test_the_probe_leaves_a_model_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("lfm2")
    with caplog.at_level(logging.INFO):
        probe(model, StateCache(StateSlots(1)))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
