"""Worker: transformers' `generate` over a static batch of prompts of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from benchmarks.peers.serve import About, Served, Setup, serve
from benchmarks.peers.workload import Workload


class _Clock(StoppingCriteria):
    """Stops nothing. It is asked after each step, and notes the time."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.times.append(perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Generate:
    def load(self, setup: Setup) -> About:
        torch.set_num_threads(setup.threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            Path(setup.model), dtype=getattr(torch, setup.dtype)
        )
        attention = self._model.config._attn_implementation
        return About(
            f"transformers {transformers.__version__}, torch {torch.__version__}",
            f"{setup.dtype}, one static batch, {attention} attention, dynamic cache",
            f"every matrix in {setup.dtype}",
        )

    def run(self, workload: Workload) -> list[Served] | None:
        if not workload.is_batch:
            return None
        clock = _Clock()
        start = perf_counter()
        ids = torch.tensor(workload.prompts)
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=workload.output_tokens,
                do_sample=False,
                eos_token_id=-1,  # every request gets all of its tokens
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        times = [time - start for time in clock.times]
        tokens = output[:, ids.shape[1] :].tolist()
        return [Served(0.0, list(times), row) for row in tokens]

    def score(self, windows: Sequence[Sequence[int]]) -> list[float]:
        found = []
        for window in windows:
            ids = torch.tensor([window])
            with torch.inference_mode():
                logits = self._model(ids).logits[0, :-1].float()
            of_next = functional.cross_entropy(logits, ids[0, 1:], reduction="none")
            found.append(-float(of_next.double().sum()))
        return found


if __name__ == "__main__":
    serve(Generate())
