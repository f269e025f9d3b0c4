"""Worker: batchdeck's engine core over the model. Its argument is the width of the weights."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig

from benchmarks.peers.serve import About, Served, Setup, drive, serve
from benchmarks.peers.width import BF16
from benchmarks.peers.workload import Workload
from engine.api.client import Submission
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.core.core import EngineCore
from engine.model.checks.gate import find_class
from engine.model.files.checkpoint import open_checkpoint
from engine.model.files.stored import plain_weights
from engine.model.loading.weights import load_weights
from engine.model.program.quantize import quantize
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace


def build(setup: Setup, width: str) -> tuple[EngineCore, str]:
    """The engine, put together as the program's loader does it, and the name of its attention
    backend."""
    torch.set_num_threads(setup.threads)
    folder = Path(setup.model)
    stated = AutoConfig.from_pretrained(folder)
    model_class = find_class(stated)
    # Weights are read and not mapped: a mapped file counts as memory as long as one of its weights
    # is held.
    model = load_weights(
        model_class,
        stated,
        folder,
        list(plain_weights(open_checkpoint(folder))),
        torch.bfloat16,
        torch.device("cpu"),
        lambda *_: None,
    )
    config = EngineConfig(
        num_blocks=setup.blocks(BLOCK_SIZE, spare=64),
        block_size=BLOCK_SIZE,
        max_model_len=setup.max_len,
        max_num_seqs=setup.max_seqs,
        max_num_batched_tokens=setup.budget,
        dtype="bfloat16",
        quantize="none" if width == BF16.name else width,
    )
    shape = trace(model_class, stated, torch.bfloat16).shape
    forward = make_forward(model, config, shape, coded=quantize(model, config, shape))
    core = EngineCore(
        config=config,
        runner=TorchRunner(forward, config, shape),
        shape=shape,
        card=ModelCard("bench", "", 0, "bfloat16", "cpu", forward.attention, setup.max_len, 0, 0),
        key="bench",
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=setup.max_seqs, max_num_batched_tokens=setup.budget),
        clock=time.perf_counter,
    )
    return core, forward.attention


class Batchdeck:
    """Steps the core as the engine's thread does."""

    def __init__(self, width: str) -> None:
        self._width = width

    def load(self, setup: Setup) -> About:
        self._core, attention = build(setup, self._width)
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        return About(
            versions,
            f"{attention}, {setup.budget} tokens a step, prefix caching, bf16 cache of "
            f"{BLOCK_SIZE}s",
            "every matrix in bfloat16"
            if self._width == BF16.name
            else f"products by `quantize = {self._width!r}`, the rest in bfloat16",
        )

    def run(self, workload: Workload) -> list[Served]:
        return drive(self, workload)

    def submit(self, index: int, prompt: Sequence[int], output_tokens: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens)
        self._core.add_request(Submission(request_id=str(index)), prompt, sampling)

    def step(self) -> Iterator[tuple[int, int]]:
        outputs = self._core.step()
        for output in outputs:
            if output.end is not None and output.end.error is not None:
                raise RuntimeError(output.end.error.message)
        return ((int(output.request_id), token) for output in outputs for token in output.token_ids)


if __name__ == "__main__":
    serve(Batchdeck(sys.argv[1]))
