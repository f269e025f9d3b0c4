"""Loading: contenders set up, loaded and compared with the model in float32."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.environment import PeerMissingError
from benchmarks.peers.reference import Reference
from benchmarks.peers.serve import About, Setup
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.workload import Recipe

CHECK = Recipe("check", 1, 128, 8)


def load(
    comparison: Comparison,
    options: argparse.Namespace,
    checkpoint: Path,
    recipes: list[Recipe],
) -> dict[str, tuple[About, str]]:
    """Set all contenders up, then load them.

    Returns:
        What there is to say of each that was loaded: what it is, and whether it computes the model.
    """
    ready = _set_up(comparison, options, checkpoint)
    reference = Reference(checkpoint, CHECK.make(0))
    lengths = [recipe.make(0).lengths for recipe in (*recipes, CHECK)]
    abouts = {}
    for name, (python, model) in ready.items():
        contender = options.contenders[name]
        variables = contender.variables(options.level) | {"OMP_NUM_THREADS": str(options.threads)}
        log = options.cache / f"{name.replace(' ', '-')}.log"
        worker = Worker(contender.command(python), variables, log)
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
        agreement = reference.compare(run.requests[0].tokens, contender.form.width)
        abouts[name] = about, str(agreement)
        comparison.say(f"{name} is loaded")
    return abouts


def _set_up(
    comparison: Comparison, options: argparse.Namespace, checkpoint: Path
) -> dict[str, tuple[Path, Path]]:
    """The interpreter and the model of each contender. A peer that cannot be had is tried once, and
    not again in each of its forms."""
    ready = {}
    missing: dict[str, str] = {}
    for name, contender in options.contenders.items():
        peer = contender.peer.name
        try:
            if peer not in missing:
                ready[name] = contender.set_up(
                    options.cache, checkpoint, options.level, comparison.say
                )
        except PeerMissingError as error:
            missing[peer] = str(error)
        if peer in missing:
            comparison.failed[name] = missing[peer]
    return ready
