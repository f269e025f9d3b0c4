"""A core over a tiny real model whose victims are swapped to host memory."""

from __future__ import annotations

from typing import Any

import torch

from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.status import ModelCard
from engine.core.core import EngineCore
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.clock import VirtualClock
from tests.support.zoo import MAX_LEN, tiny_model

# Blocks of the host pool, and of a pool in which nobody is preempted.
AMPLE = 80
_CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "torch", MAX_LEN, 0, 0)


def swapping_core(name: str, backend: str, num_blocks: int, **knobs: Any) -> EngineCore:
    """A core for up to six chats with a model of the zoo; `knobs` change single ones."""
    model = tiny_model(name)
    config = EngineConfig(
        num_blocks=num_blocks,
        num_host_blocks=AMPLE,
        max_model_len=MAX_LEN,
        max_num_seqs=6,
        max_num_batched_tokens=48,
    )
    shape = trace(type(model), model.config, torch.float32).shape
    runner = TorchRunner(make_forward(model, config, shape, backend), config, shape)
    assert runner.swap_rate > 0
    stated = {"max_num_seqs": 6, "max_num_batched_tokens": 48, "watermark": 0.0} | knobs
    return EngineCore(
        config=config,
        runner=runner,
        shape=shape,
        card=_CARD,
        key="tiny",
        eos_token_ids=frozenset(),
        knobs=Knobs(**stated),
        clock=VirtualClock(),
        swap_rate=runner.swap_rate,
    )
