"""Sampling: what masks add to the sampling of a step, computed beside a pause."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch

from benchmarks.structure.timed import timed
from benchmarks.structure.vocab import Vocab
from engine.api.sampling import SamplingParams
from engine.api.structure import Structure
from engine.batch.plan import NewSequence
from engine.model.step.sampler import Sampler
from engine.structure.compiler import Compiler
from engine.structure.lead import NO_LEAD
from engine.structure.rules import write

HEAD = ("vocabulary", "rows", "sampled", "replies", "ms a step", "of them waiting")
GREEDY = SamplingParams(temperature=0)
NUCLEUS = SamplingParams(temperature=0.8, top_p=0.95)


def measure(vocab: Vocab, rows: int, rounds: int = 15) -> list[list[str]]:
    """The time of sampling in a step of so many rows, a row for each way: the best of some rounds,
    10 ms apart, in which a forward pass would run.
    """
    size = len(vocab.words.utf8)
    structure = Structure.of({"json_object": True})
    compiler = Compiler(vocab.words)
    grammar = compiler.compile(write(structure, NO_LEAD), structure.kind)
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(0)) * 3
    index = np.arange(rows)
    table = []
    for name, params in (("greedy", GREEDY), ("temperature 0.8, top_p 0.95", NUCLEUS)):
        for made in (None, grammar):
            sampler = Sampler(max_num_seqs=rows, vocab_size=size, device="cpu")
            for row in range(rows):
                sampler.add(row, NewSequence(row, (0,), 1, params, row, (), (), made))
            best, waited = float("inf"), 0.0
            for step in range(rounds):
                time.sleep(0.01)
                work = partial(sampler.sample, logits.clone(), index, np.full(rows, 1 + step))
                seconds, sampled = timed(work)
                if seconds < best:
                    best, waited = seconds, sampled.waited
            what = "free" if made is None else "any JSON object"
            figures = (f"{1e3 * best:.2f}", f"{1e3 * waited:.2f}")
            table.append([vocab.name, str(rows), name, what, *figures])
    return table
