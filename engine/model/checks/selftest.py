"""play: runs a script by our engine, and compares with the model's own eager attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.batch.shape import ModelShape
from engine.model.checks.script import Script
from engine.model.program.coded import Coded
from engine.model.program.verify import Wrong
from engine.model.running.forward import Forward, make_forward
from engine.model.running.runner import TorchRunner


class Finding(NamedTuple):
    """The difference of a row's logits from the model's own: the quotient of their norms."""

    situation: str
    difference: float


@torch.inference_mode()
def play(
    model: PreTrainedModel,
    config: EngineConfig,
    shape: ModelShape,
    backend: str,
    script: Script,
    coded: Coded | None = None,
    apart: Sequence[Wrong] = (),
) -> tuple[Forward, list[Finding]]:
    """Run a script's steps, and compare with one eager pass over all of its sequences.

    Args:
        model, coded, apart: see `engine.model.running.forward.make_forward`, which takes over the
            model.
        config: the envelope of the forward pass, large enough for the script's steps.

    Returns:
        the forward pass, and a finding for each row with logits, in the script's order.
    """
    model.set_attn_implementation("eager")
    token_ids = torch.tensor(script.token_ids, device=model.device)
    expected = model(input_ids=token_ids, use_cache=False).logits
    forward = make_forward(model, config, shape, backend, coded, apart)
    runner = TorchRunner(forward, script.envelope(config), shape)
    findings = []
    for plan, situations in script.steps:
        rows = zip(plan.rows, situations, strict=True)
        sampling = [(row, situation) for row, situation in rows if row.samples]
        for got, (row, situation) in zip(runner.logits(plan), sampling, strict=True):
            own = expected[row.seq, row.start + row.count - 1]
            findings.append(Finding(situation, _difference(got, own)))
    runner.close()
    return forward, findings


def _difference(got: Tensor, expected: Tensor) -> float:
    expected = expected.float()
    return float((got - expected).norm() / expected.norm())
