"""A decode step as a program beside the same model module by module, both with native attention.

    python -m benchmarks.forward [--models gemma4-e,gemma4,latents,latents-moe] [--seqs 1,8,32]
                                 [--threads 2]

Models are random ones in bfloat16 of 8 layers of 1,024 numbers: two whose layers differ in their
heads, every fourth of which attends to all tokens, and two that store latents. Both sides compute
the same steps in one process and take turns, on the same number of threads; figures are medians of
all steps, and the least, which tells more where other programs run; the ratio is that of the
medians. The steps follow 512 tokens of each sequence, which are not computed: what the cache holds
does not change what a step costs. Logits are computed, and no token is sampled.

A turn begins with steps that are not counted, in which the other side's threads fall asleep.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from app.process.columns import row
from benchmarks.heading import heading
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.program.forward import make_program
from engine.model.running.forward import Forward, ModuleForward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.latents import extract_expansions
from engine.model.tracing.trace import trace
from engine.native import kernels

CONTEXT = 512
ROUNDS, STEPS, UNCOUNTED = 6, 12, 3
LENGTH = CONTEXT + ROUNDS * (STEPS + UNCOUNTED)
HEAD = ("model", "sequences", "program", "least", "modules", "least", "ratio")
WIDTHS = (-10, 9, 9, 9, 9, 9, 6)

_COMMON: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
}

_LATENTS: dict[str, Any] = {
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "layer_types": None,
}

MODELS: Mapping[str, dict[str, Any]] = {
    # Half of the layers share keys and values, and each is given a part of a second embedding.
    "gemma4-e": {
        "per_layer_config": {key: {"head_dim": 512} for key in ("3", "7")},
        "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 128,
        "vocab_size_per_layer_input": 32_000,
    },
    "gemma4": {
        "num_key_value_heads": 2,
        "attention_k_eq_v": True,
        "per_layer_config": {
            key: {"head_dim": 512, "num_key_value_heads": 1} for key in ("3", "7")
        },
    },
    # Of MiniCPM3's kind, and of GLM-4.7-Flash's with half as many heads.
    "latents": _LATENTS | {"model_type": "minicpm3"},
    "latents-moe": _LATENTS
    | {
        "model_type": "glm4_moe_lite",
        "n_routed_experts": 32,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 512,
        "mlp_layer_types": ["dense"] + ["sparse"] * 7,
    },
}


def make_model(name: str) -> Any:
    """The model of this name, the same one at every call."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**({"model_type": "gemma4_text"} | _COMMON | MODELS[name]))
    auto: Any = AutoModelForCausalLM
    return auto.from_config(config, dtype=torch.bfloat16).eval()


class Side:
    """Decodes of up to `most` sequences by one way to compute a model.

    Args:
        program: whether it is a program of native kernels.
    """

    def __init__(self, name: str, most: int, *, program: bool) -> None:
        model = make_model(name)
        self._shape = trace(type(model), model.config, torch.bfloat16).shape
        self._config = _config(most)
        self._forward: Forward
        shape, expansions = self._shape, None
        if shape.has_latents:
            expansions = extract_expansions(model)
        if program:
            self._forward = make_program(model, self._config, shape, expansions=expansions)
        else:
            self._forward = ModuleForward(
                model, CpuAttention(), shape, expansions=expansions, off_kernels="is measured"
            )

    def begin(self, seqs: int) -> None:
        """Let the steps that follow be of so many sequences."""
        self._runner = TorchRunner(self._forward, self._config, self._shape)
        self._seqs, self._at = seqs, CONTEXT
        tokens = tuple(range(LENGTH))
        self._new = tuple(
            NewSequence(seq, tokens, LENGTH, SamplingParams(), 0, (), ()) for seq in range(seqs)
        )

    def step(self) -> float:
        """Compute the next token of each sequence; returns seconds."""
        rows = tuple(
            Row(seq, self._at, 1, _blocks(seq) if self._new else (), True, False)
            for seq in range(self._seqs)
        )
        plan = StepPlan(self._at, rows, new=self._new)
        start = time.perf_counter()
        self._runner.logits(plan)
        self._at, self._new = self._at + 1, ()
        return time.perf_counter() - start


def _config(seqs: int) -> EngineConfig:
    return EngineConfig(
        num_blocks=seqs * -(-LENGTH // BLOCK_SIZE),
        max_model_len=LENGTH,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs,
        dtype="bfloat16",
    )


def _blocks(seq: int) -> tuple[int, ...]:
    each = -(-LENGTH // BLOCK_SIZE)
    return tuple(range(seq * each, (seq + 1) * each))


def measure(sides: Sequence[Side]) -> list[float]:
    """Median and least seconds of a step, of each side in turn."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, found in zip(sides, times, strict=True):
            turn = [side.step() for _ in range(UNCOUNTED + STEPS)]
            found += turn[UNCOUNTED:]
    return [of_one(found) for found in times for of_one in (median, min)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seqs", default="1,8,32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    names = options.models.split(",")
    if unknown := set(names) - MODELS.keys():
        parser.error(f"--models: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    native = kernels()
    if native is None:
        raise SystemExit("this installation has no native kernels")
    native.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    print(heading(f"{native.level()}, {options.threads} threads", f"torch {torch.__version__}"))
    print("milliseconds a step")
    print(row(HEAD, WIDTHS))
    counts = [int(count) for count in options.seqs.split(",")]
    for name in names:
        sides = [Side(name, max(counts), program=is_ours) for is_ours in (True, False)]
        for seqs in counts:
            for side in sides:
                side.begin(seqs)
            times = measure(sides)
            shown = (f"{1e3 * one:.2f}" for one in times)
            print(row((name, str(seqs), *shown, f"{times[2] / times[0]:.2f}"), WIDTHS), flush=True)


if __name__ == "__main__":
    main()
