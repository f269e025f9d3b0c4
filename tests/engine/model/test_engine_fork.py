"""Forks on a real model: a block that is filled in part is copied in every part of the pool."""

from __future__ import annotations

import random

import pytest
import torch

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.batch.plan import End
from engine.core.core import EngineCore
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.clock import VirtualClock
from tests.support.zoo import MAX_LEN, MIXED, VOCAB_SIZE, tiny_model

CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "torch", MAX_LEN, 0, 0)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.mark.parametrize("name", ["llama", *sorted(MIXED)])
def test_a_fork_is_told_what_it_is_told_alone(name: str, backend: str) -> None:
    model = tiny_model(name)
    shape = trace(type(model), model.config, torch.float32).shape
    config = EngineConfig(num_blocks=40, max_model_len=MAX_LEN, max_num_seqs=4)
    core = EngineCore(
        config=config,
        runner=TorchRunner(make_forward(model, config, shape, backend), config, shape),
        shape=shape,
        card=CARD,
        key="tiny",
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=4, prefix_caching=False),
        clock=VirtualClock(),
    )
    tokens: dict[str, list[int]] = {name: [] for name in ("source", "fork", "alone")}
    ends: dict[str, End] = {}

    def run(until: int) -> None:
        while core.num_unfinished and len(tokens["source"]) < until:
            for output in core.step():
                tokens[output.request_id].extend(output.token_ids)
                if output.end is not None:
                    ends[output.request_id] = output.end
            core.check()

    rng = random.Random(5)
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(37)]
    core.add_request(Submission(request_id="source"), prompt, GREEDY)
    run(until=9)
    branch = [*prompt, *tokens["source"][:6], 3, 1]
    core.add_request(Submission(request_id="fork", fork_of="source"), branch, GREEDY)
    run(until=100)
    core.add_request(Submission(request_id="alone"), branch, GREEDY)
    run(until=100)
    assert tokens["fork"] == tokens["alone"] != tokens["source"]
    assert ends["fork"].usage.cached_tokens == 37 + 6
    assert ends["alone"].usage.cached_tokens == 0
