"""Requests served: beside transformers' continuous batching, and decodes beside a long prefill."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from benchmarks.gpu.engine import Started, release
from benchmarks.peers.engines.continuous import ends
from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from engine.api.telemetry import Distribution
from engine.batch.plan import TokenOutput
from engine.core.core import EngineCore

Cells = tuple[str, ...]

# Seconds that one run may take; the longest that was meant takes a fourth of it.
PATIENCE = 120.0

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
        core.add_request(Submission(), prompt, sampling)
    for _ in steps(core):
        if core.idle and not core.num_unfinished:
            break
    seconds = time.perf_counter() - begun
    release(started, range(1, len(requests) + 1))
    return seconds


def serve_by_transformers(
    model: PreTrainedModel, attention: str, requests: list[list[int]], output: int
) -> float:
    """Seconds until transformers' continuous batching has ended all requests."""
    model.set_attn_implementation(attention)
    # Without a GPU it would take most of the machine's memory for its cache. Other attention than
    # that which the row names may have to be downloaded first.
    pages = None if model.device.type == "cuda" else 64
    batching = ContinuousBatchingConfig(
        max_batch_tokens=2048, num_blocks=pages, auto_switch_to_flash=False
    )
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
            for _ in ends(manager, len(requests), PATIENCE):
                pass
            seconds = time.perf_counter() - begun
    finally:
        manager.stop(block=True, timeout=10.0, hard_stop=True)
    return seconds


def gap(started: Started, policy: str, decodes: int, context: int, prefill: int) -> Cells:
    """Gaps between the tokens of requests that decode, alone and while a long prompt comes in."""
    core = started.core(policy=policy, prefix_caching=False)
    # They decode until they are aborted.
    endless = SamplingParams(temperature=0, ignore_eos=True)
    vocab = started.shaped.shape.vocab_size
    for prompt in prompts(decodes, context, vocab):
        core.add_request(Submission(), prompt, endless)
    _until_all_decode(core, decodes)
    idle = _gaps(core, 60)
    first = core.records.total - 1
    core.add_request(
        Submission(request_id="long"),
        prompts(1, prefill, vocab)[0],
        SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
    )
    begun = time.perf_counter()
    for outputs in steps(core):
        if any(one.request_id == "long" and one.end is not None for one in outputs):
            break
    seconds = time.perf_counter() - begun
    # The last gap that the prompt makes lies between the decodes before and after its last piece.
    _until_all_decode(core, decodes)
    records = core.records.since(first)
    busy = _between([record.end for record in records if record.decode_rows])
    core.abort_all()
    for _ in steps(core):
        if core.idle:
            break
    release(started, range(1, decodes + 2))
    quiet, found = Distribution.of(idle), Distribution.of(busy)
    return (
        policy,
        *(f"{1e3 * value:,.1f}" for value in (quiet.p99, found.p50, found.p99, max(busy))),
        f"{found.p99 / quiet.p99:.2f}x",
        f"{seconds:.2f}",
    )


def steps(core: EngineCore) -> Iterator[list[TokenOutput]]:
    """Step until whoever asks has seen enough; gives what came out of each step.

    Raises:
        RuntimeError: a request was refused, or failed.
        TimeoutError: it has taken longer than `PATIENCE`.
    """
    until = time.perf_counter() + PATIENCE
    while time.perf_counter() < until:
        outputs = core.step()
        for one in outputs:
            if one.end is not None and one.end.error is not None:
                raise RuntimeError(one.end.error.message)
        yield outputs
    raise TimeoutError(f"it has not ended within {PATIENCE:.0f} s")


def _until_all_decode(core: EngineCore, decodes: int) -> None:
    for _ in steps(core):
        last = core.records.since(core.records.total - 1)
        if last and last[0].decode_rows == decodes:
            return


def _gaps(core: EngineCore, number: int) -> list[float]:
    first = core.records.total
    for _ in itertools.islice(steps(core), number):
        pass
    return _between([record.end for record in core.records.since(first)])


def _between(moments: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(moments)]
