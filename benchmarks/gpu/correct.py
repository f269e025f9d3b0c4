"""Correctness on the device, before anything is timed: every architecture of the parity suite, and
one of each kind that kernels of ours compute in part or not at all.
"""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.gpu.device import Device
from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.cache.storage import cache_shapes
from engine.core.core import EngineCore
from engine.model.attention.triton_backend import TritonAttention
from engine.model.checks.gate import checked_forward
from engine.model.gpu.choosing import Clock
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.runner import GpuRunner
from engine.model.gpu.start import runner_with_graphs
from engine.model.running.forward import ModuleForward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.rope import freeze_rope
from engine.model.tracing.trace import trace
from engine.triton.product import strips
from tests.support.zoo import LATENT, MAX_LEN, SERVED, VOCAB_SIZE, tiny_model

Cells = tuple[str, ...]

HEAD: Cells = ("architecture", "type", "as", "graphs", "tokens", "worst gap", "seconds", "verdict")
_OUTPUT = 20
# Two logits of a float32 model are told apart if they differ by more.
_NEAR_TIE = 1e-3

# Heads of 256 numbers, and what layers keep of a sequence beside keys and values.
_WIDE: dict[str, tuple[str, dict[str, Any]]] = {"llama, heads of 256": ("llama", {"head_dim": 256})}
_STATES = ("qwen3_next", "lfm2", "mamba2")
NAMES = (*sorted(SERVED), *_WIDE, *_STATES, *sorted(LATENT))


def check(device: Device, names: list[str]) -> Iterator[Cells]:
    """Greedy tokens in float32 against the model's own logits; in bfloat16, the gate alone."""
    for name in names or NAMES:
        # The interpreter cannot compute in bfloat16.
        for dtype in (torch.float32, torch.bfloat16) if device.is_gpu else (torch.float32,):
            begun = time.perf_counter()
            try:
                cells = _checked(device, name, dtype)
            except Exception as error:  # the others are to be seen, too
                cells = ("", "", "", "", f"FAILED: {type(error).__name__}: {error}"[:300])
            label = str(dtype).removeprefix("torch.")
            seconds = f"{time.perf_counter() - begun:.1f}"
            yield (name, label, *cells[:4], seconds, cells[4])


def _checked(device: Device, name: str, dtype: torch.dtype) -> Cells:
    known, changes = _WIDE.get(name, (name, {}))
    models: Any = tiny_model(known, dtype=dtype, **changes)
    model: PreTrainedModel = models.to(device.torch)
    config = EngineConfig(
        num_blocks=18,
        max_model_len=MAX_LEN,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device.torch),
    )
    shape = trace(type(model), model.config, dtype).shape
    freeze_rope(model, MAX_LEN)
    eager = copy.deepcopy(model)
    is_ours = not any(map(TritonAttention.why_not, cache_shapes(config, shape)))
    forward = checked_forward(model, config, shape, "triton" if is_ours else "torch")
    runner: GpuRunner | TorchRunner
    if isinstance(forward, GpuForward):
        if device.is_gpu:
            # The one kind of product that takes few rows of any number, wherever it is right.
            forward.choose(_ever_faster(), lambda rows: strips(rows)[-1:])
        runner = runner_with_graphs(forward, config, shape)
        way, graphs = "launches", str(runner.num_graphs)
    else:
        assert isinstance(forward, ModuleForward)
        runner = TorchRunner(forward, config, shape)
        way, graphs = f"modules, {forward.attention}", ""
    core = EngineCore(
        config=config,
        runner=runner,
        shape=shape,
        card=ModelCard(name, name, 0, config.dtype, config.device, "triton", MAX_LEN, 0, 0),
        key=name,
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=8, max_num_batched_tokens=24, watermark=0.0),
        clock=time.perf_counter,
    )
    rng = random.Random(11)
    texts = [
        [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 5, 16, 33, 60]))]
        for _ in range(12)
    ]
    for number, text in enumerate(texts):
        core.add_request(
            Submission(request_id=str(number)),
            text,
            SamplingParams(temperature=0, max_tokens=_OUTPUT),
        )
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(texts))}
    while core.num_unfinished or not core.idle:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
        core.check()
    failed = [record.error for record in core.records.since(0) if record.error]
    if failed:
        raise RuntimeError(failed[0])
    worst = 0.0
    if dtype == torch.float32:
        worst = max(
            _worst_gap(eager, text, tokens[str(number)]) for number, text in enumerate(texts)
        )
    count = sum(map(len, tokens.values()))
    right = worst < _NEAR_TIE and count == len(texts) * _OUTPUT
    return (way, graphs, str(count), f"{worst:.1e}", "ok" if right else "WRONG")


def _ever_faster() -> Clock:
    """A clock by which all that comes later is faster."""
    count = itertools.count(1)
    return lambda work: 1.0 / next(count)


@torch.inference_mode()
def _worst_gap(model: torch.nn.Module, text: list[int], got: list[int]) -> float:
    """How far the worst of the tokens lies below the model's own best after those before it."""
    device = next(model.parameters()).device
    logits = model(torch.tensor([text + got], device=device), use_cache=False).logits[0].double()
    gaps = [
        float(row.max() - row[token])
        for row, token in zip(logits[len(text) - 1 :], got, strict=False)
    ]
    return max(gaps)
