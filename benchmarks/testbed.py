"""A testbed over a model loaded on this machine, in real time."""

from __future__ import annotations

import torch

from app.bench.testbed import EndingRunner, Testbed
from benchmarks.smoke import load
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.status import ModelCard
from engine.core.core import EngineCore
from engine.driving.drive import Clock, WallClock
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace

EOS = 0


def on_this_machine(model_name: str, config: EngineConfig) -> Testbed:
    """An engine over a model of `benchmarks.smoke`, in bfloat16, whose requests end at their true
    lengths.

    Args:
        config: `device` is where the model goes.
    """
    device = torch.device(config.device)
    model = load(model_name, device)
    shape = trace(type(model), model.config, torch.bfloat16).shape
    runner = EndingRunner(TorchRunner(make_forward(model, config, shape), config, shape), EOS)
    length = config.max_model_len
    card = ModelCard(model_name, "", 0, "bfloat16", config.device, "torch", length, 0, 0)

    def make(knobs: Knobs) -> tuple[EngineCore, Clock]:
        clock = WallClock()
        core = EngineCore(
            config=config,
            runner=runner,
            shape=shape,
            card=card,
            key=model_name,
            eos_token_ids=frozenset({EOS}),
            knobs=knobs,
            clock=clock,
        )
        return core, clock

    return Testbed(
        config=config,
        shape=shape,
        knobs=Knobs(),
        make=make,
        encode=None,
        about={},
        virtual=False,
    )
