"""Requests served: beside transformers' continuous batching, and decodes beside a long prefill."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from benchmarks.gpu.engine import Started
from benchmarks.peers.engines.continuous import ends
from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from engine.api.telemetry import Distribution
from engine.core.core import EngineCore

Cells = tuple[str, ...]

SERVE_HEAD: Cells = ("engine", "attention", "seconds", "out tok/s", "ratio")
GAP_HEAD: Cells = ("policy", "idle p99", "p50", "p99", "most", "p99 / idle", "prefill s")


def prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Prompts that differ from the first token on."""
    generator = torch.Generator().manual_seed(0)
    made = torch.randint(0, vocab_size, (count, length), generator=generator)
    made[:, 0] = torch.arange(count) % vocab_size
    rows: list[list[int]] = made.tolist()
    return rows


def serve(started: Started, requests: list[list[int]], output: int) -> float:
    """Seconds until the engine has ended all requests."""
    core = started.core()
    sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    begun = time.perf_counter()
    for prompt in requests:
        core.submit(Submission(), prompt, sampling)
    while core.num_unfinished or not core.idle:
        core.step()
    return time.perf_counter() - begun


def serve_by_transformers(
    model: PreTrainedModel, attention: str, requests: list[list[int]], output: int
) -> float:
    """Seconds until transformers' continuous batching has ended all requests."""
    model.set_attn_implementation(attention)
    batching = ContinuousBatchingConfig(max_batch_tokens=2048)
    generation = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    models: Any = model
    manager = models.init_continuous_batching(generation, batching)
    manager.start()
    try:
        for round_ in range(2):  # the first one warms it up
            begun = time.perf_counter()
            for number, prompt in enumerate(requests):
                name = f"{round_}/{number}"
                manager.add_request(list(prompt), request_id=name, max_new_tokens=output)
            for _ in ends(manager, len(requests)):
                pass
            seconds = time.perf_counter() - begun
    finally:
        manager.stop(block=True, timeout=10.0)
    return seconds


def gap(started: Started, policy: str, decodes: int, context: int, prefill: int) -> Cells:
    """Gaps between the tokens of requests that decode, alone and while a long prompt comes in."""
    core = started.core(policy=policy, prefix_caching=False)
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    vocab = started.shaped.shape.vocab_size
    for prompt in prompts(decodes, context, vocab):
        core.submit(Submission(), prompt, long)
    while len(core.records.since(0)) < 1 or core.records.since(0)[-1].decode_rows < decodes:
        core.step()
    idle = _gaps(core, 60)
    first = core.records.since(0)[-1].step
    core.submit(
        Submission(request_id="long"),
        prompts(1, prefill, vocab)[0],
        SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
    )
    begun = time.perf_counter()
    seconds = 0.0
    while not seconds:
        for one in core.step():
            if one.request_id == "long" and one.end is not None:
                seconds = time.perf_counter() - begun
    records = core.records.since(first)
    busy = _between([record.end for record in records if record.decode_rows])
    core.abort_all()
    while not core.idle:
        core.step()
    quiet, found = Distribution.of(idle), Distribution.of(busy)
    return (
        policy,
        *(f"{1e3 * value:,.1f}" for value in (quiet.p99, found.p50, found.p99, max(busy))),
        f"{found.p99 / quiet.p99:.2f}x",
        f"{seconds:.2f}",
    )


def _gaps(core: EngineCore, steps: int) -> list[float]:
    first = core.records.since(0)[-1].step
    for _ in range(steps):
        core.step()
    return _between([record.end for record in core.records.since(first)])


def _between(moments: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(moments)]
