"""The cost of a prompt's log-probabilities: a prompt with and without them, of two vocabularies.

    python -m benchmarks.prompt_logprobs [--tokens 1024] [--chunk 512] [--rounds 7]

The models are the built-in one, and one of random weights with Qwen2.5 0.5B's layers and a
vocabulary of 152,000, both in bfloat16. The prompt is computed in chunks, as an engine would
compute it that has nothing else to do. Without log-probabilities its logits are computed once,
behind its last token. With them they are computed behind each token, and each is told with so many
of the likeliest. All take turns; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from app.process.columns import row
from benchmarks.heading import heading

if TYPE_CHECKING:
    from engine.model.running.runner import TorchRunner

LARGE_VOCABULARY = 152_000
NUMBERS = (None, 0, 1, 5, 20)
HEAD = ("model", "vocabulary", "likeliest", "ms", "tokens/s", "to without")
WIDTHS = (-8, 10, 9, 8, 8, 10)


def runner_of(name: str, tokens: int, chunk: int) -> tuple[TorchRunner, int]:
    """A model made ready, and the size of its vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.model_387m import make_model
    from engine.api.config import EngineConfig
    from engine.builtin import MODEL_DIR
    from engine.model.running.forward import make_forward
    from engine.model.running.runner import TorchRunner
    from engine.model.tracing.rope import freeze_rope
    from engine.model.tracing.trace import trace

    factory: Any = AutoModelForCausalLM
    model = (
        factory.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
        if name == "built-in"
        else make_model(vocab_size=LARGE_VOCABULARY)
    )
    shape = trace(type(model), model.config, torch.bfloat16).shape
    config = EngineConfig(
        dtype="bfloat16",
        num_blocks=tokens // 16 + 2,
        max_model_len=tokens + 16,
        max_num_seqs=32,
        max_num_batched_tokens=chunk,
    )
    freeze_rope(model, config.max_model_len)
    return TorchRunner(make_forward(model, config, shape), config, shape), shape.vocab_size


def prefill(
    runner: TorchRunner, seq: int, prompt: tuple[int, ...], chunk: int, number: int | None
) -> float:
    """Seconds that a prompt takes from its first step to the end of its last."""
    from engine.api.sampling import SamplingParams
    from engine.batch.plan import NewSequence, Row, StepPlan

    sampling = SamplingParams(temperature=0, prompt_logprobs=number)
    new = (NewSequence(seq, prompt, len(prompt), sampling, 0, (), ()),)
    blocks = tuple(range(-(-len(prompt) // 16)))
    told = 0
    started = time.perf_counter()
    for start in range(0, len(prompt), chunk):
        count = min(chunk, len(prompt) - start)
        last = start + count == len(prompt)
        rows = (Row(seq, start, count, () if start else blocks, last, True),)
        result = runner.result(runner.start_step(StepPlan(1, rows, () if start else new)))
        told += sum(len(found.token_ids) for _, found in result.prompts)
    seconds = time.perf_counter() - started
    runner.start_step(StepPlan(1, (), released=(seq,)))
    assert told == (0 if number is None else len(prompt) - 1)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="what log-probabilities of a prompt cost")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    import torch

    from engine.native import kernels

    native = kernels()
    used = "none" if native is None else native.level()
    about = f"{options.tokens} tokens in chunks of {options.chunk}"
    print(heading(f"torch {torch.__version__}, kernels {used}", about))
    print(row(HEAD, WIDTHS))
    for name in ("built-in", "random"):
        runner, vocab_size = runner_of(name, options.tokens, options.chunk)
        prompt = tuple((31 * i + 7) % vocab_size for i in range(options.tokens))
        times: dict[int | None, list[float]] = {number: [] for number in NUMBERS}
        seq = 0
        for _ in range(options.rounds):
            for number in NUMBERS:
                times[number].append(prefill(runner, seq, prompt, options.chunk, number))
                seq += 1
        plain = median(times[None])
        for number in NUMBERS:
            seconds = median(times[number])
            cells = (
                name,
                f"{vocab_size:,}",
                "without" if number is None else str(number),
                f"{seconds * 1e3:.0f}",
                f"{options.tokens / seconds:,.0f}",
                f"{seconds / plain:.2f}x",
            )
            print(row(cells, WIDTHS), flush=True)


if __name__ == "__main__":
    main()
