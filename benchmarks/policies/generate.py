"""Static batches as transformers' `generate` runs them: the baseline on a loaded model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from engine.driving.traffic import Task

PAD = 0


class EndAtLength(StoppingCriteria):
    """Ends each row when it has its own number of tokens, as `min_tokens` and an end of sequence
    do: the batch goes on until its slowest member has ended.

    Args:
        prompt: how many tokens each padded prompt has.
        lengths: [rows], how many output tokens each row has.
    """

    def __init__(self, prompt: int, lengths: torch.Tensor) -> None:
        self._prompt = prompt
        self._lengths = lengths

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        """[rows], whether each has ended."""
        return input_ids.shape[1] - self._prompt >= self._lengths


@dataclass(frozen=True, slots=True)
class Batch:
    """A static batch.

    Attributes:
        outputs: each row's own tokens.
        steps: how many steps the batch took, that of the prompts included.
        prompt_tokens: how many tokens the prompts have, without padding.
        padding: prompt tokens computed for nothing.
        bubbles: decodes computed for rows that had ended.
    """

    outputs: list[list[int]]
    steps: int
    prompt_tokens: int
    padding: int
    bubbles: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The result of `generate` on a workload."""

    seconds: float
    batches: list[Batch]

    @property
    def output_tokens(self) -> int:
        return sum(len(output) for batch in self.batches for output in batch.outputs)

    @property
    def output_throughput(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def steps(self) -> int:
        return sum(batch.steps for batch in self.batches)

    @property
    def bubbles(self) -> float:
        """Share of the decodes that belong to rows that had ended."""
        bubbles = sum(batch.bubbles for batch in self.batches)
        return bubbles / max(self._decodes + bubbles, 1)

    @property
    def padded(self) -> float:
        """Share of all tokens computed that are padding or bubbles."""
        padding = sum(batch.padding + batch.bubbles for batch in self.batches)
        prompts = sum(batch.prompt_tokens for batch in self.batches)
        return padding / (prompts + self._decodes + padding)

    @property
    def _decodes(self) -> int:
        """Each row's first token comes from its prompt."""
        return self.output_tokens - sum(len(batch.outputs) for batch in self.batches)


def without_eos(model: PreTrainedModel) -> PreTrainedModel:
    """Let only the lengths end a row, and quietly: none of its own defaults remain."""
    assert model.generation_config is not None
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model


def generate(
    model: PreTrainedModel, tasks: Sequence[Task], batch_size: int, *, to_longest: bool = False
) -> Generated:
    """Run a burst in batches in the order of arrival, each until its longest has ended. Greedy.

    Args:
        model: see `without_eos`.
        tasks: output lengths are their `min_tokens`.
        to_longest: every batch runs until the longest of all tasks would have ended, as the naive
            baseline of Anyscale (2023) did (`benchmarks.policies.replay`).
    """
    longest = max(task.sampling.min_tokens for task in tasks)
    start = time.perf_counter()
    batches = [
        _run(model, batch, longest if to_longest else None) for batch in _batches(tasks, batch_size)
    ]
    return Generated(time.perf_counter() - start, batches)


def _batches(tasks: Sequence[Task], size: int) -> Iterator[Sequence[Task]]:
    for first in range(0, len(tasks), size):
        yield tasks[first : first + size]


def _run(model: PreTrainedModel, tasks: Sequence[Task], steps: int | None) -> Batch:
    """Run one batch for so many steps; None runs it until its longest row has ended."""
    lengths = [task.sampling.min_tokens for task in tasks]
    prompts = [list(task.prompt_token_ids) for task in tasks]
    width, most = max(map(len, prompts)), max(lengths) if steps is None else steps
    ended_at = lengths if steps is None else [most] * len(lengths)
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor(
        [[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device
    )
    ends = EndAtLength(width, torch.tensor(ended_at, device=model.device))
    with torch.inference_mode():
        output = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=mask,
            max_new_tokens=most,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([ends]),
        )
    # Otherwise something else ended the batch, or nothing did.
    assert output.shape[1] == width + most
    rows = output[:, width:].tolist()
    return Batch(
        outputs=[row[:length] for row, length in zip(rows, lengths, strict=True)],
        steps=most,
        prompt_tokens=sum(map(len, prompts)),
        padding=sum(width - len(prompt) for prompt in prompts),
        bubbles=sum(most - length for length in lengths),
    )
