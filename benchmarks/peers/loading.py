"""Loading: the peers of a comparison set up, loaded and compared with the model in float32."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.environment import PeerMissingError
from benchmarks.peers.peers import PEERS
from benchmarks.peers.reference import Reference
from benchmarks.peers.serve import Setup
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.workload import Recipe

CHECK = Recipe("check", 1, 128, 8)


def load(
    comparison: Comparison, options: argparse.Namespace, checkpoint: Path, recipes: list[Recipe]
) -> list[str]:
    """Set all peers up, then load them.

    Returns:
        What there is to say of each: its version, its settings, whether it computes the model.
    """
    ready = {}
    for name in options.peers:
        try:
            ready[name] = PEERS[name].set_up(
                options.cache, checkpoint, options.level, comparison.say
            )
        except PeerMissingError as error:
            comparison.failed[name] = str(error)
    reference = Reference(checkpoint, CHECK.make(0))
    lengths = [recipe.make(0).lengths for recipe in (*recipes, CHECK)]
    abouts = []
    for name, (python, model) in ready.items():
        peer = PEERS[name]
        variables = peer.variables(options.level) | {"OMP_NUM_THREADS": str(options.threads)}
        worker = Worker(peer.command(python), variables, options.cache / f"{name}.log")
        comparison.workers[name] = worker
        setup = Setup(
            model=str(model),
            threads=options.threads,
            max_seqs=max(map(len, lengths)),
            max_len=max(map(max, lengths)),
            cache_lengths=max(lengths, key=sum),
            dtype=options.level.dtype,
        )
        try:
            about = worker.load(setup)
            run = worker.run(CHECK.make(0))
        except WorkerError as error:
            comparison.drop(name, str(error))
            continue
        assert run is not None
        agreement = reference.compare(run.requests[0].tokens)
        abouts.append(f"{name}: {about.version}\n  {about.settings}\n  {agreement}")
        comparison.say(f"{name} is loaded")
    return abouts
