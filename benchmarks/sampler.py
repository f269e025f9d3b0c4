"""How long sampling takes in a step: the native kernel beside the torch path.

    python -m benchmarks.sampler [--rows 32] [--vocab 32000,152000] [--rounds 15]

Logits are normally distributed with a deviation of 3. Of 152,000 tokens, a nucleus of 0.95 at
temperature 0.8 then has some 3,000, and one of 0.99 at temperature 1.5 some 95,000. The two sides
take turns, and the best time of each is shown.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from app.process.columns import row
from benchmarks.heading import heading
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence
from engine.model.step.draw import Draw, KernelDraw, TorchDraw
from engine.model.step.sampler import Sampler
from engine.native import kernels

CASES = {
    "greedy": SamplingParams(temperature=0),
    "temperature 0.8, top_p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "temperature 1.5, top_p 0.99": SamplingParams(temperature=1.5, top_p=0.99),
    "top_k 50": SamplingParams(top_k=50),
    "no filter": SamplingParams(),
}
WIDTHS = (10, -28, 15, 15)


def make_sampler(rows: int, vocab_size: int, params: SamplingParams, draw: Draw) -> Sampler:
    sampler = Sampler(max_num_seqs=rows, vocab_size=vocab_size, device="cpu", draw=draw)
    for slot in range(rows):
        sampler.add(slot, NewSequence(0, (0,), 1, params, slot, (), ()))
    return sampler


def milliseconds(samplers: list[Sampler], logits: torch.Tensor, rounds: int) -> list[float]:
    """The best time of each sampler for a step of these logits."""
    index = np.arange(len(logits))
    best = [float("inf")] * len(samplers)
    for step in range(rounds):
        for i, sampler in enumerate(samplers):
            started = time.perf_counter()
            sampler.sample(logits, index, np.full(len(logits), 1 + step))
            best[i] = min(best[i], time.perf_counter() - started)
    return [1e3 * seconds for seconds in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab", default="32000,152000", help="sizes of vocabularies")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()

    native = kernels()
    draws: list[Draw] = [TorchDraw()] if native is None else [KernelDraw(native), TorchDraw()]
    names = ["torch"] if native is None else [f"kernel ({native.level()})", "torch"]
    if native is not None:
        native.set_threads(torch.get_num_threads())
    print(heading(f"{torch.get_num_threads()} threads each", f"torch {torch.__version__}"))
    print(f"ms a step of {args.rows} rows")
    print(row(("vocabulary", "", *names), WIDTHS))
    for vocab_size in map(int, args.vocab.split(",")):
        torch.manual_seed(0)
        logits = torch.randn(args.rows, vocab_size) * 3
        for name, params in CASES.items():
            samplers = [make_sampler(args.rows, vocab_size, params, draw) for draw in draws]
            times = milliseconds(samplers, logits, args.rounds)
            print(row((f"{vocab_size:,}", name, *(f"{ms:.2f}" for ms in times)), WIDTHS))


if __name__ == "__main__":
    main()
