"""Worker: transformers' continuous batching, by the manager on which `generate_batch` runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.peers.serve import About, Served, Setup, serve
from benchmarks.peers.workload import Workload

_PAGE_SIZE = 256  # its default


def ends(manager: Any, count: int, patience: float = math.inf) -> Iterator[Any]:
    """The last results of so many requests, as they come.

    Raises:
        RuntimeError: a request failed, or the manager's thread.
        TimeoutError: they have not all come within `patience`, seconds.
    """
    until = perf_counter() + patience
    while count:
        if perf_counter() > until:
            raise TimeoutError(f"{count} requests have not ended within {patience:.0f} s")
        result = manager.get_result(timeout=1.0)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("the manager's thread has ended; its log says why")
        elif result.error is not None:
            raise RuntimeError(result.error)
        elif result.is_finished():
            count -= 1
            yield result


class Continuous:
    """Gives requests to the manager's thread when they come, and notes the time of each token."""

    def __init__(self) -> None:
        self._manager: Any = None

    def load(self, setup: Setup) -> About:
        torch.set_num_threads(setup.threads)
        model = AutoModelForCausalLM.from_pretrained(
            Path(setup.model), dtype=getattr(torch, setup.dtype), attn_implementation="sdpa"
        )
        config = ContinuousBatchingConfig(
            page_size=_PAGE_SIZE,
            num_blocks=setup.blocks(_PAGE_SIZE, spare=4),
            max_batch_tokens=setup.budget,
            max_requests_per_batch=setup.max_seqs,
        )
        generation = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        self._manager = model.init_continuous_batching(generation, config)
        self._manager.start()
        self._names = itertools.count()
        return About(
            f"transformers {transformers.__version__}, torch {torch.__version__}",
            f"{setup.dtype}, {setup.budget} tokens a step, sdpa attention, prefix sharing, "
            f"pages of {_PAGE_SIZE}",
            f"every matrix in {setup.dtype}",
        )

    def run(self, workload: Workload) -> list[Served]:
        served, index_of = [], {}
        start = perf_counter()
        for index, (arrival, prompt) in enumerate(
            zip(workload.arrivals, workload.prompts, strict=True)
        ):
            sleep(max(0.0, arrival - (perf_counter() - start)))
            name = str(next(self._names))
            index_of[name] = index
            served.append(Served(arrival))
            self._manager.add_request(
                list(prompt),
                request_id=name,
                max_new_tokens=workload.output_tokens,
                record_timestamps=True,
            )
        for result in ends(self._manager, len(index_of)):
            request = served[index_of[result.request_id]]
            request.times = [time - start for time in result.timestamps or ()]
            request.tokens = result.generated_tokens
        return served

    def close(self) -> None:
        """End the manager's thread, without which the process does not end."""
        if self._manager is not None:
            self._manager.stop(block=True, timeout=5.0)


if __name__ == "__main__":
    continuous = Continuous()
    serve(continuous)
    continuous.close()
