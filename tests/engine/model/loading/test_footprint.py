"""The planned memory of the largest step and of loading, against the measured memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.files.size_text import format_bytes
from engine.model.loading.footprint import HEAP_BYTES, footprint_of
from engine.model.machine.memory import LargestStep, MemoryNeeds
from engine.model.program.pack import Packer
from engine.model.running.forward import Forward, make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace


def peak_bytes(call: Callable[[], object]) -> tuple[int, int]:
    """Most bytes that torch's allocator had out at once during a call, above those before it, and
    those after it.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    held = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most, held


def bytes_of(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


SIZES: dict[str, dict[str, Any]] = {
    "wide layers": {"kind": "llama", "intermediate_size": 4096, "vocab_size": 200, "seqs": 2},
    "large vocabulary": {"kind": "llama", "vocab_size": 20_000, "seqs": 64, "context": 128},
    "long context": {"kind": "llama", "vocab_size": 200, "seqs": 6, "context": 12_288},
    "softcap": {"kind": "gemma2", "vocab_size": 200, "seqs": 6, "context": 12_288},
    "experts": {
        "kind": "qwen3_moe",
        "vocab_size": 200,
        "seqs": 2,
        "num_experts": 8,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
    },
    "many experts": {
        "kind": "qwen3_moe",
        "vocab_size": 200,
        "seqs": 2,
        "num_experts": 64,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 512,
    },
}


def model_of(options: dict[str, Any], context: int, dtype: torch.dtype) -> PreTrainedModel:
    """A model of one layer."""
    config = AutoConfig.for_model(
        options["kind"],
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        pad_token_id=None,
        **{"intermediate_size": 256, **{k: v for k, v in options.items() if k != "kind"}},
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    return model


def watch_packing(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of weights that are there as they were and packed, at each that is packed from now on,
    above those of the model.
    """
    weight_bytes = bytes_of(model)
    twice = [0]
    packed = 0

    def watch(name: str) -> None:
        pack = getattr(Packer, name)

        def watched(self: Packer, *args: object) -> tuple[torch.Tensor, object]:
            nonlocal packed
            weight, how = pack(self, *args)
            packed += weight.nbytes
            twice.append(bytes_of(model) + packed - weight_bytes)
            return weight, how

        monkeypatch.setattr(Packer, name, watched)

    watch("pack")
    watch("pack_each")
    return twice


def longest_sequences(step: LargestStep) -> tuple[NewSequence, ...]:
    # Nearly even: a nucleus of most of the vocabulary, the dearest to find.
    sampling = SamplingParams(temperature=100.0, top_p=0.9999, logprobs=5, prompt_logprobs=5)
    context, blocks = step.longest, step.longest // 16
    return tuple(
        NewSequence(
            seq,
            (1,) * context,
            context - 1,
            sampling,
            seq,
            (),
            tuple(range(seq * blocks, (seq + 1) * blocks)),
        )
        for seq in range(step.seqs)
    )


def largest_steps(step: LargestStep) -> dict[str, tuple[Row, ...]]:
    """Rows of the largest steps of each kind, by its name."""
    seqs, tokens, context = step.seqs, step.tokens, step.longest
    share = tokens // seqs
    return {
        # These tell of all tokens of their prompts.
        "one prompt": (Row(0, context - tokens, tokens - 1, (), True, True),),
        "many prompts": tuple(
            Row(seq, context - share, share - 1, (), True, True) for seq in range(seqs)
        ),
        "decode": tuple(Row(seq, context - 2, 1, (), True, False) for seq in range(seqs)),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
def test_the_largest_step_takes_no_more_than_planned(
    size: str, dtype: torch.dtype, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(SIZES[size])
    seqs, context = options.pop("seqs"), options.pop("context", 1024)
    step = LargestStep(seqs=seqs, tokens=min(1024, context), longest=context)
    model = model_of(options, context, dtype)
    traced = trace(type(model), model.config, dtype)
    envelope = EngineConfig(
        num_blocks=seqs * context // 16,
        max_model_len=context,
        max_num_seqs=seqs,
        max_num_batched_tokens=step.tokens,
        dtype=str(dtype).removeprefix("torch."),
    )
    needs = MemoryNeeds(
        name=size,
        shape=traced.shape,
        weight_bytes=bytes_of(model),
        loading_bytes=bytes_of(model),
        saved_bytes=0,
        num_layers=traced.num_layers,
        layer_width=traced.layer_width,
        layer_experts=traced.layer_experts,
        max_positions=context,
        context_length=None,
    )
    made: list[Forward] = []
    twice = watch_packing(model, monkeypatch)
    loading, kept = peak_bytes(
        lambda: made.append(make_forward(model, envelope, traced.shape, backend))
    )
    # What packed weights are in is not torch's, and the profiler does not see that memory from
    # before it is freed: weights that were packed. `twice` has both.
    loading += max(twice)
    runner = TorchRunner(made[0], envelope, traced.shape)
    runner.logits(StepPlan(1, (), new=longest_sequences(step)))
    footprint = footprint_of(backend, torch.device("cpu"))
    unseen = HEAP_BYTES if backend == "cpu" else 0  # by torch's allocator
    planned = footprint.load_bytes(needs, step) - unseen
    assert loading <= max(planned, 0), (
        f"loading: {format_bytes(loading)} of {format_bytes(planned)}"
    )
    planned = footprint.step_bytes(needs, step) - unseen
    for name, rows in largest_steps(step).items():
        taken, _ = peak_bytes(lambda rows=rows: runner.result(runner.start_step(StepPlan(2, rows))))
        taken += kept
        assert taken <= planned, f"{name}: {format_bytes(taken)} of {format_bytes(planned)}"
