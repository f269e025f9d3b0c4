"""A step that raises on the real runner ends its prompt; the others do not notice."""

from __future__ import annotations

import random

import pytest
import torch

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.core.core import EngineCore
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.clock import VirtualClock
from tests.support.zoo import MAX_LEN, VOCAB_SIZE, tiny_model

CONFIG = EngineConfig(num_blocks=32, max_model_len=MAX_LEN, max_num_seqs=4)
CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "torch", MAX_LEN, 0, 0)
SAMPLING = SamplingParams(temperature=0.0, max_tokens=12)


def outputs(fail: str | None, backend: str) -> dict[str, tuple[list[int], FinishReason]]:
    """Two requests decode when a third arrives, whose first step raises in `fail`."""
    model = tiny_model("llama")
    shape = trace(type(model), model.config, torch.float32).shape
    runner = TorchRunner(make_forward(model, CONFIG, shape, backend), CONFIG, shape)
    core = EngineCore(
        config=CONFIG,
        runner=runner,
        shape=shape,
        card=CARD,
        key="tiny",
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=4),
        clock=VirtualClock(),
    )
    rng = random.Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(n)] for n in (20, 7, 30)]
    tokens: dict[str, list[int]] = {}
    ends: dict[str, FinishReason] = {}
    with pytest.MonkeyPatch.context() as patch:
        for step in range(60):
            if step == 0:
                core.add_request(Submission(request_id="a"), prompts[0], SAMPLING)
                core.add_request(Submission(request_id="b"), prompts[1], SAMPLING)
            if step == 4:
                core.add_request(Submission(request_id="c"), prompts[2], SAMPLING)
                if fail is not None:
                    target, name = {
                        "forward": (runner, "forward"),
                        "learning": (runner._batch, "add"),
                    }[fail]

                    def out_of_memory(*_: object, **__: object) -> None:
                        patch.undo()  # it fails once
                        raise MemoryError("no room")

                    patch.setattr(target, name, out_of_memory)
            for output in core.step():
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
                if output.end is not None:
                    ends[output.request_id] = output.end.reason
            core.check()
            if core.idle and step > 4:
                break
    return {name: (tokens[name], ends[name]) for name in ends}


@pytest.mark.parametrize("fail", ["forward", "learning"])
def test_a_failed_step_ends_its_prompt_alone(fail: str, backend: str) -> None:
    whole, broken = outputs(None, backend), outputs(fail, backend)
    assert broken["c"][1] is FinishReason.ERROR
    assert whole["c"][1] is FinishReason.LENGTH
    for name in ("a", "b"):
        assert broken[name] == whole[name]
        assert whole[name][1] is FinishReason.LENGTH
