"""Worker: batchdeck as its users have it: a model file or folder by the program's own loader.

Its arguments are what weights are quantized to, and the type that is computed in, as `--quantize`
and `--dtype` have them; `-` leaves one to the program.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import psutil
import torch
import transformers

from benchmarks.peers.engines.ours import Batchdeck
from benchmarks.peers.serve import About, Setup, serve
from engine.api.client import LoadRequest, Submission
from engine.api.config import BLOCK_SIZE
from engine.api.sampling import SamplingParams
from engine.core.core import EngineCore
from engine.model.catalog.registry import Registry
from engine.model.loading.loader import load_entry
from engine.text.pool import encoding

# As few as a peer's, because they count as its memory.
_SPARE_BLOCKS = 4
_SETTLED_SECONDS = 0.3


class Loaded(Batchdeck):
    """As the program does, it starts the process that encodes beside its own imports, which are no
    part of a load.
    """

    def __init__(self, quantize: str | None, dtype: str | None) -> None:
        self._quantize, self._dtype = quantize, dtype
        self._close: Callable[[], None] = lambda: None
        self._starting = ExitStack()
        self._encoder = self._starting.enter_context(encoding())
        used, before = _seconds_of_children(), -1.0
        while used != before:
            time.sleep(_SETTLED_SECONDS)
            used, before = _seconds_of_children(), used

    def load(self, setup: Setup) -> About:
        # The threads are what OMP_NUM_THREADS says, as for a user.
        request = LoadRequest(
            model=setup.model,
            quantize=self._quantize,
            dtype=self._dtype,
            num_blocks=setup.blocks(BLOCK_SIZE, _SPARE_BLOCKS),
        )
        entry = Registry.read(request.models_file).find(request.model)
        with self._starting:
            model = load_entry(entry, request, lambda *_: None, self._encoder)
        self._close = model.close
        self._core = EngineCore(
            config=model.config,
            runner=model.runner,
            shape=model.shape,
            card=model.card,
            key=model.key,
            eos_token_ids=frozenset(),  # every request gets all of its tokens
            knobs=model.knobs,
            clock=time.perf_counter,
        )
        card = model.card
        return About(
            f"torch {torch.__version__}, transformers {transformers.__version__}",
            f"{card.attention}, computes in {card.dtype}, {model.knobs.max_num_batched_tokens} "
            "tokens a step, prefix caching",
            f"stay packed as {card.packed_as}" if card.packed_as else f"quantize: {card.quantize}",
        )

    def score(self, windows: Sequence[Sequence[int]]) -> list[float]:
        return [self._score(window) for window in windows]

    def _score(self, window: Sequence[int]) -> float:
        sampling = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
        self._core.add_request(Submission(request_id="score"), window, sampling)
        total, count = 0.0, 0
        while True:
            for output in self._core.step():
                if output.prompt is not None:
                    total += sum(output.prompt.logprobs)
                    count += len(output.prompt.token_ids)
                if output.end is None:
                    continue
                if output.end.error is not None:
                    raise RuntimeError(output.end.error.message)
                if count != len(window) - 1:
                    raise RuntimeError(f"{count} of {len(window) - 1} tokens have a probability")
                return total

    def close(self) -> None:
        """End the processes that encode, without which this one does not end.

        A program that serves for some seconds has kept its packed weights by then.
        """
        for thread in threading.enumerate():
            if thread.name == "engine-packed":
                thread.join()
        self._close()


def _seconds_of_children() -> float:
    """Seconds of processor time that the child processes have used."""
    return sum(sum(one.cpu_times()[:2]) for one in psutil.Process().children())


if __name__ == "__main__":
    loaded = Loaded(*(None if argument == "-" else argument for argument in sys.argv[1:]))
    serve(loaded)
    loaded.close()
