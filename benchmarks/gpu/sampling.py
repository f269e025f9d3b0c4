"""The sampler on a device beside torch's: the same tokens for the same rows, and its time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.gpu.device import Device
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence
from engine.model.gpu.sampler import DeviceSampler
from engine.model.step.draw import TorchDraw
from engine.model.step.sampler import Sampler

Cells = tuple[str, ...]

SAME_HEAD: Cells = ("vocabulary", "rows", "tokens", "other", "verdict")
TIME_HEAD: Cells = ("vocabulary", "rows", "sampling", "us")
KINDS = {
    "greedy": SamplingParams(temperature=0),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
    "top_k": SamplingParams(temperature=1.2, top_k=50),
    "min_p": SamplingParams(temperature=1.0, min_p=0.02),
    "no filter": SamplingParams(temperature=1.0),
    "penalties": SamplingParams(
        temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=-0.2
    ),
    "biases": SamplingParams(temperature=0.9, logit_bias=((5, 6.0), (7, -100.0))),
    "suppressed": SamplingParams(temperature=0.5, min_tokens=40, stop_token_ids=(1, 2, 3)),
}
# Logits of equal value share one fate only if both samplers agree to the bit.
_DEVIATIONS = (0.05, 3.0, 9.0)


def same(device: Device, vocabularies: list[int], steps: int) -> Iterator[Cells]:
    """Each kind of sampling in a row of its own, over logits of each deviation, step by step."""
    for vocab_size in vocabularies:
        rows = len(KINDS) * len(_DEVIATIONS)
        ours, latest = _sampler(device, vocab_size, rows)
        theirs = Sampler(max_num_seqs=rows, vocab_size=vocab_size, device="cpu", draw=TorchDraw())
        index = np.arange(rows)
        for row in range(rows):
            params = list(KINDS.values())[row % len(KINDS)]
            new = NewSequence(row, (4, 9, 4, 11), 3, params, 1000 + row, (1, 2, 3), ())
            if (upload := ours.add(row, new)) is not None:
                upload()
            theirs.add(row, new)
        scale = torch.tensor(_DEVIATIONS).repeat_interleave(len(KINDS))[:, None]
        generator = torch.Generator().manual_seed(vocab_size)
        other = 0
        for step in range(steps):
            logits = torch.randn(rows, vocab_size, generator=generator) * scale
            lengths = np.full(rows, 4 + step)
            found = _chosen(ours, latest, logits.to(device.torch), index, lengths, device)
            expected = theirs.sample(logits, index, lengths).token_ids
            other += int((found.cpu().numpy() != expected).sum())
        verdict = "WRONG" if other else "ok"
        yield (f"{vocab_size:,}", str(rows), str(rows * steps), str(other), verdict)


def times(device: Device, vocab_size: int, many: list[int]) -> Iterator[Cells]:
    """The time of a step's launches, in a graph."""
    for rows in many:
        for name, params in KINDS.items():
            sampler, latest = _sampler(device, vocab_size, rows)
            for row in range(rows):
                new = NewSequence(row, (4,), 1, params, row, (), ())
                if (upload := sampler.add(row, new)) is not None:
                    upload()
            logits = torch.randn(rows, vocab_size, device=device.torch) * 3
            words = torch.from_numpy(sampler.pack(np.arange(rows), np.full(rows, 1)))
            words = words.to(device.torch)
            tokens = torch.zeros(rows, dtype=torch.int32, device=device.torch)

            def work(
                sampler: DeviceSampler = sampler,
                logits: torch.Tensor = logits,
                words: torch.Tensor = words,
                tokens: torch.Tensor = tokens,
                latest: torch.Tensor = latest,
            ) -> None:
                sampler.launch(logits, words, tokens, latest)

            seconds = device.seconds(device.captured(work))
            yield (f"{vocab_size:,}", str(rows), name, f"{seconds * 1e6:,.1f}")


def _sampler(device: Device, vocab_size: int, rows: int) -> tuple[DeviceSampler, torch.Tensor]:
    sampler = DeviceSampler(max_num_seqs=rows, vocab_size=vocab_size, device=device.torch)
    return sampler, torch.zeros(rows, dtype=torch.int32, device=device.torch)


def _chosen(
    sampler: DeviceSampler,
    latest: torch.Tensor,
    logits: torch.Tensor,
    index: np.ndarray,
    lengths: np.ndarray,
    device: Device,
) -> torch.Tensor:
    words = torch.from_numpy(sampler.pack(index, lengths)).to(device.torch)
    tokens = torch.full((len(index),), -9, dtype=torch.int32, device=device.torch)
    sampler.launch(logits, words, tokens, latest)
    return tokens
