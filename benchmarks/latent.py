"""Latents in the cache, their cost and saving: a step of a model that stores them beside one that
does not.

    python -m benchmarks.latent [--rows 1,8,32] [--context 512] [--prompt 512] [--layers 2]
                                [--rounds 9] [--threads 2]

The model has layers of GLM-4.7-Flash's size in bfloat16, with random weights: 20 heads with keys
and values of 256 numbers each, made of 512 + 64 numbers a token. Each has a dense block as large as
what a token goes through in its experts. Both sides have the same weights, run in one process, and
take turns step by step; figures are medians, of milliseconds by the clock and of those that the
processor spent, which other programs disturb less. `kv` is what attention reads of the cache in a
step. A prompt is computed in one step, with the context before it that makes up the length of its
row.

The second table is of the attention of one layer alone, for such a prompt: to latents, with the
products before and after it (`absorbed`), or to keys and values of all heads that are made of the
latents for this step only (`made` says what that takes, `expanded` is all of it).
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from app.process.columns import row
from benchmarks.heading import heading
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.native import kernels

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from engine.batch.shape import ModelShape
    from engine.model.running.runner import TorchRunner

GLM_FLASH = {
    "hidden_size": 2048,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "intermediate_size": 5 * 1536,
    "vocab_size": 4096,
}
HEAD = ("step", "length", "latents", "heads", "ratio", "cpu", "cpu", "ratio", "kv", "kv")
WIDTHS = (-14, 6, 8, 8, 6, 8, 8, 6, 9, 9)
PROMPT_HEAD = ("one layer, cpu", "length", "absorbed", "expanded", "ratio", "made")
PROMPT_WIDTHS = (-14, 6, 8, 8, 6, 8)


class Times(NamedTuple):
    """Seconds of a step by the clock, and of the processor."""

    wall: float
    cpu: float


def make_model(layers: int) -> PreTrainedModel:
    """The same weights each time."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "glm4_moe_lite",
        **GLM_FLASH,
        num_hidden_layers=layers,
        mlp_layer_types=["dense"] * layers,
        max_position_embeddings=1 << 17,
    )
    torch.manual_seed(0)
    untyped: Any = AutoModelForCausalLM
    model: PreTrainedModel = untyped.from_config(config, dtype=torch.bfloat16)
    return model


def make_runner(model: PreTrainedModel, config: EngineConfig, *, latents: bool) -> Side:
    import torch

    from engine.model.running.forward import make_forward
    from engine.model.running.runner import TorchRunner
    from engine.model.tracing.trace import trace

    shape = trace(type(model), model.config, torch.bfloat16, latents=latents).shape
    runner = TorchRunner(make_forward(model, config, shape), config, shape)
    return Side(runner, shape, config.num_blocks)


class Side:
    """A runner and the sequences that it knows."""

    def __init__(self, runner: TorchRunner, shape: ModelShape, num_blocks: int) -> None:
        self.shape = shape
        self._runner = runner
        self._step = 0
        # Memory that nobody has written to would be read from the processor's caches.
        for block in range(1, num_blocks):
            self._submit(copies=((0, block),))

    def measure(self, context: int, count: int, seqs: int) -> Times:
        """The times of a step of `count` tokens of each of `seqs` new sequences.

        The `context` tokens before them are not computed: zeros take as long.
        """
        blocks = -(-(context + count) // BLOCK_SIZE)
        tokens = tuple(i % 4096 for i in range(context + count))
        rows, new = [], []
        for seq in range(seqs):
            table = tuple(range(seq * blocks, (seq + 1) * blocks))
            new.append(NewSequence(seq, tokens, len(tokens), SamplingParams(), 0, (), ()))
            rows.append(Row(seq, context, count, table, True, count > 1))
        start, spent = perf_counter(), process_time()
        self._submit(tuple(rows), new=tuple(new))
        times = Times(perf_counter() - start, process_time() - spent)
        self._submit(released=tuple(range(seqs)))
        return times

    def _submit(self, rows: tuple[Row, ...] = (), **others: Any) -> None:
        self._step += 1
        self._runner.start_step(StepPlan(self._step, rows, **others))

    def kv_bytes(self, context: int, count: int, seqs: int) -> int:
        return self.shape.kv_bytes_per_token * (context + count) * seqs


def main() -> None:
    options = _options()
    native = kernels()
    if native is not None:
        native.set_threads(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    contexts = (0, options.context, 8 * options.context)
    steps = [(f"{rows} sequences", options.context - 1, 1, rows) for rows in options.rows]
    steps += [(f"prompt of {options.prompt}", context, options.prompt, 1) for context in contexts]
    most = max(seqs * -(-(context + count) // BLOCK_SIZE) for _, context, count, seqs in steps)
    config = EngineConfig(
        num_blocks=most,
        max_model_len=most * BLOCK_SIZE,
        max_num_seqs=max(options.rows),
        max_num_batched_tokens=max(options.prompt, *options.rows),
        dtype="bfloat16",
    )
    sides = []
    for latents in (True, False):
        sides.append(make_runner(make_model(options.layers), config, latents=latents))
        gc.collect()
    print(heading(f"{options.threads} threads; torch {torch.__version__}; {options.layers} layers"))
    print(row(HEAD, WIDTHS), flush=True)
    for name, context, count, seqs in steps:
        found: tuple[list[Times], list[Times]] = ([], [])
        for turn in range(options.rounds + 1):
            for times, side in zip(found, sides, strict=True):
                taken = side.measure(context, count, seqs)
                if turn:  # the first touches memory that nobody has used
                    times.append(taken)
        cells = [name, str(context + count)]
        for kind in ("wall", "cpu"):
            ours, theirs = (1e3 * median(getattr(one, kind) for one in times) for times in found)
            cells += [f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}"]
        cells += [f"{side.kv_bytes(context, count, seqs) / 1e6:.1f} MB" for side in sides]
        print(row(cells, WIDTHS), flush=True)
    if native is not None:
        compare_prompts(contexts, options.prompt, options.rounds)


class Prompt:
    """The attention of one layer for a prompt, by either way.

    Args:
        context, count: tokens before the prompt, and of it.
    """

    def __init__(self, context: int, count: int) -> None:
        import torch

        from engine.model.attention.latent import Expansion

        heads, rank = GLM_FLASH["num_attention_heads"], GLM_FLASH["kv_lora_rank"]
        content, rope = GLM_FLASH["qk_nope_head_dim"], GLM_FLASH["qk_rope_head_dim"]
        value_dim = GLM_FLASH["v_head_dim"]

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape).to(torch.bfloat16)

        native = kernels()
        assert native is not None
        self._native = native
        self._heads, self._rank = heads, rank
        self._expansion = Expansion(numbers(heads, content, rank), numbers(heads, value_dim, rank))
        self._length = context + count
        blocks = -(-self._length // BLOCK_SIZE)
        self._latents = numbers(blocks, 1, native.key_unit("bfloat16", rank + rope))
        self._keys = numbers(blocks, heads, native.key_unit("bfloat16", content + rope))
        self._values = numbers(blocks, heads, native.value_unit(value_dim))
        self._query = numbers(count, heads, content + rope)
        self._step = (
            np.array([context]),
            np.array([count]),
            np.arange(blocks)[None],
            heads,
            (content + rope) ** -0.5,
        )

    def absorbed(self) -> None:
        query = self._expansion.absorb(self._query)
        out = query.new_empty(len(query), self._heads, self._rank)
        self._native.attend(out.flatten(1), query.flatten(1), self._latents, None, *self._step)
        self._expansion.release(out)

    def made(self) -> None:
        import torch

        # From the kernels' layout (kernels.hpp) to one row for each token.
        units = self._latents.view(len(self._latents), -1, BLOCK_SIZE, 2).transpose(1, 2)
        latents = units.flatten(0, 1).flatten(1)[: self._length]
        c = latents[None, :, : self._rank].expand(self._heads, -1, -1)
        content, value = (
            torch.bmm(c, by.transpose(1, 2)).transpose(0, 1)
            for by in (self._expansion.keys, self._expansion.values)
        )
        position = latents[:, None, self._rank :].expand(-1, self._heads, -1)
        key = torch.cat((content, position), dim=2)
        slots = np.arange(self._length)
        self._native.store(self._keys, self._values, slots, key.flatten(1), value.flatten(1))

    def expanded(self) -> None:
        self.made()
        query = self._query.flatten(1)
        out = query.new_empty(len(query), self._heads * self._expansion.values.shape[1])
        self._native.attend(out, query, self._keys, self._values, *self._step)


def compare_prompts(contexts: Sequence[int], count: int, rounds: int) -> None:
    """Print the second table."""
    import torch

    print(row(PROMPT_HEAD, PROMPT_WIDTHS))
    for context in contexts:
        prompt = Prompt(context, count)
        calls = (prompt.absorbed, prompt.expanded, prompt.made)
        found: tuple[list[float], ...] = tuple([] for _ in calls)
        with torch.inference_mode():
            for turn in range(rounds + 1):
                for times, call in zip(found, calls, strict=True):
                    spent = process_time()
                    call()
                    if turn:
                        times.append(process_time() - spent)
        absorbed, expanded, made = (1e3 * median(times) for times in found)
        cells = [f"prompt of {count}", str(context + count), f"{absorbed:.1f}", f"{expanded:.1f}"]
        cells += [f"{expanded / absorbed:.2f}", f"{made:.1f}"]
        print(row(cells, PROMPT_WIDTHS), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latent",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", default="1,8,32", help="sequences of decode steps")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.rows = [int(part) for part in options.rows.split(",")]
    return options


if __name__ == "__main__":
    main()
