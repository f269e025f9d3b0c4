"""Decode steps of models that keep states, beside a plain model's: time for their bytes.

    python -m benchmarks.states [--models plain,delta-net,...] [--batches 1,8,32] [--rounds 7]

All are random models in bfloat16 of about the same size. A step reads the weights once, and of each
sequence its keys and values, or its states, which it also writes. So models are compared by the
time that a step takes for a gigabyte, as a quotient with that of the plain model at the same number
of sequences. `program` is what a model runs as, `modules` the same model run by transformers'
modules with attention of ours (as on a machine without the native kernels for the rest).
All take turns in one process; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from app.process.columns import row
from benchmarks.heading import heading

if TYPE_CHECKING:
    from engine.model.running.runner import TorchRunner

CONTEXT = 128  # tokens of each sequence
STEPS = 3  # of a turn, which counts as its mean
VOCAB_SIZE = 32_000
LAYERS = 8
_HYBRID = ["linear_attention"] * 3 + ["full_attention"]
# Configurations by name: the type that transformers has for it, and what it takes of it.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("qwen3", {"intermediate_size": 3072, "head_dim": 128}),
    "delta-net": (
        "qwen3_5_text",
        {
            "intermediate_size": 3072,
            "head_dim": 128,
            "layer_types": _HYBRID * (LAYERS // 4),
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
    ),
    "convolution": (
        "lfm2",
        {
            "intermediate_size": 4608,
            "layer_types": ["conv", "conv", "full_attention", "conv"] * (LAYERS // 4),
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "state-space": (
        "granitemoehybrid",
        {
            "shared_intermediate_size": 3072,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "layer_types": ["mamba", "mamba", "mamba", "attention"] * (LAYERS // 4),
            "mamba_n_heads": 32,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
        },
    ),
}
COMMON = {
    "hidden_size": 1024,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
HEAD = ("model", "runs as", "batch", "step ms", "MB", "GB/s", "to plain")
WIDTHS = (-12, -8, 5, 8, 7, 6, 8)


@dataclass(frozen=True, slots=True)
class Contender:
    """A model made ready to decode.

    Attributes:
        way: what it runs as.
        megabytes: that a step moves, by the number of sequences.
    """

    name: str
    way: str
    runner: TorchRunner
    megabytes: dict[int, float]


def contender(name: str, batches: list[int], backend: str | None) -> Contender:
    """A model with sequences of `CONTEXT` tokens, as many as the largest batch has."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from engine.api.config import EngineConfig
    from engine.model.running.forward import ModuleForward, make_forward
    from engine.model.running.runner import TorchRunner
    from engine.model.tracing.rope import freeze_rope
    from engine.model.tracing.trace import trace

    kind, own = MODELS[name]
    config = AutoConfig.for_model(kind, **COMMON, **own)
    torch.manual_seed(0)
    factory: Any = AutoModelForCausalLM
    model = factory.from_config(config, dtype=torch.bfloat16).eval()
    shape = trace(type(model), config, torch.bfloat16).shape
    envelope = EngineConfig(
        dtype="bfloat16",
        device="cpu",
        num_blocks=max(batches) * (CONTEXT // 16 + 2),
        max_model_len=2 * CONTEXT,
        max_num_seqs=max(batches),
        max_num_batched_tokens=CONTEXT,
    )
    freeze_rope(model, envelope.max_model_len)
    states = shape.state_bytes
    each = 2 * states + shape.kv_bytes_per_token * CONTEXT
    megabytes = {batch: (shape.weight_bytes + batch * each) / 1e6 for batch in batches}
    forward = make_forward(model, envelope, shape, backend)
    way = "modules" if isinstance(forward, ModuleForward) else "program"
    runner = TorchRunner(forward, envelope, shape)
    _fill(runner, max(batches))
    return Contender(name, way, runner, megabytes)


def _fill(runner: TorchRunner, sequences: int) -> None:
    """Compute the prompts, one step each."""
    from engine.api.sampling import SamplingParams
    from engine.batch.plan import NewSequence, Row, StepPlan

    blocks = CONTEXT // 16 + 1
    for seq in range(sequences):
        prompt = tuple((seq * 31 + 7 * i) % VOCAB_SIZE for i in range(CONTEXT + 1))
        new = NewSequence(seq, prompt, CONTEXT + 1, SamplingParams(), 0, (), ())
        given = tuple(range(seq * blocks, (seq + 1) * blocks))
        rows = (Row(seq, 0, CONTEXT, given, False, True),)
        runner.result(runner.start_step(StepPlan(1, rows, new=(new,))))


def turn(runner: TorchRunner, batch: int) -> float:
    """Seconds of a decode step: the same token of each sequence, some times in a row."""
    from engine.batch.plan import Row, StepPlan

    rows = tuple(Row(seq, CONTEXT, 1, (), True, False) for seq in range(batch))
    plan = StepPlan(2, rows)
    runner.logits(plan)
    start = time.perf_counter()
    for _ in range(STEPS):
        runner.logits(plan)
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description="decode steps of models that keep states")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    batches = [int(one) for one in options.batches.split(",")]
    names = list(dict.fromkeys(["plain", *options.models.split(",")]))
    unknown = sorted(set(names) - MODELS.keys())
    if unknown:
        parser.error(f"--models: no {', '.join(unknown)}; there are {', '.join(MODELS)}")

    import torch

    from engine.native import kernels

    native = kernels()
    used = "none" if native is None else native.level()
    print(heading(f"torch {torch.__version__}, kernels {used}", f"context {CONTEXT}"))
    contenders = [contender(name, batches, None) for name in names]
    contenders += [contender(name, batches, "torch") for name in names if name != "plain"]
    print(row(HEAD, WIDTHS))
    for batch in batches:
        times: dict[int, list[float]] = {id(one): [] for one in contenders}
        for _ in range(options.rounds):
            for one in contenders:
                times[id(one)].append(turn(one.runner, batch))
        plain = contenders[0]
        unit = median(times[id(plain)]) / plain.megabytes[batch]
        for one in contenders:
            seconds, megabytes = median(times[id(one)]), one.megabytes[batch]
            rate = megabytes / 1e3 / seconds
            ratio = seconds / megabytes / unit
            cells = (
                one.name,
                one.way,
                str(batch),
                f"{seconds * 1e3:.1f}",
                f"{megabytes:.0f}",
                f"{rate:.1f}",
                f"{ratio:.2f}x",
            )
            print(row(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    main()
