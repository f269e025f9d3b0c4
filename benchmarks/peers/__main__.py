"""Tokens per second, latencies and memory of batchdeck beside its peers, on one processor.

    python -m benchmarks.peers [--rounds N] [--workloads 1x128,chat] [--peers batchdeck,llama.cpp]
                               [--threads N] [--rate R] [--quick] [--cache FOLDER]

A random model of Qwen2's shape with 387 M parameters in bfloat16 is served by batchdeck, by
transformers (`generate` over a static batch, and continuous batching), by OpenVINO GenAI (its cache
in its default precision and in bfloat16) and by llama.cpp. All get the same token ids, decode
greedily to a fixed length and use the same number of threads. They take turns in one run, each in a
process that stays loaded and sleeps meanwhile; figures are medians over the rounds.

The first run downloads and builds the peers into the cache folder (some minutes). A peer that
cannot be had is left out, with the reason. Where there is no GPU, set
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, as for batchdeck itself.

The floor of a decode step is its weights and live keys and values over the read bandwidth, or its
FLOPs over the rate of large matrix products, whichever takes longer; both rates are measured in
each round.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

import platformdirs
import torch
import transformers

from benchmarks.heading import heading
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.environment import PeerMissingError
from benchmarks.peers.floor import Machine
from benchmarks.peers.peers import OURS, PEERS
from benchmarks.peers.reference import Reference, model_shape
from benchmarks.peers.serve import Setup
from benchmarks.peers.table import table
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.workload import RECIPES, Recipe
from benchmarks.smoke import load as load_model

# More than this of a core while it should sleep, and a peer disturbs the others.
IDLE_CORES = 0.02
CHECK = Recipe("check", 1, 128, 8)


def main() -> None:
    options = _options()
    threads = options.threads
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    recipes = [RECIPES[name] for name in options.workloads]
    if options.quick:
        recipes = [recipe.shorter() for recipe in recipes]
    say(f"cache: {options.cache}")
    checkpoint = _checkpoint(options.cache)
    comparison = Comparison(say)
    with contextlib.closing(comparison):
        abouts = _load(comparison, options, checkpoint, recipes)
        machines = [Machine.measure()]
        rates = {recipe: _rate(recipe, comparison, options) for recipe in recipes}
        for number in range(options.rounds + 1):
            comparison.round(rates, number, is_kept=number > 0)
            machines.append(Machine.measure())
    machine = Machine.best(machines)
    print(
        heading(
            f"{threads} threads",
            f"reads {machine.bandwidth / 1e9:.1f} GB/s, multiplies bfloat16 at "
            f"{machine.matrix_rate / 1e12:.2f} TFLOPS",
            f"rounds: {options.rounds}",
        )
    )
    for about in abouts:
        print(about)
    for name, why in comparison.failed.items():
        print(f"{name}: left out. {why}")
    for name, taken in comparison.idle_cores():
        if taken > IDLE_CORES:
            print(f"{name}: DOES NOT SLEEP while others run; it takes {taken:.2f} cores")
    shape = model_shape(checkpoint)
    for recipe, rate in rates.items():
        arrivals = "" if rate is None else f", {rate:.2f} requests/s (Poisson)"
        print(f"\n{recipe.name}: {recipe}{arrivals}")
        print(table(recipe.make(0), comparison.results(recipe.name), shape, machine))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="besides the first, which warms up")
    parser.add_argument("--workloads", default=",".join(RECIPES))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="of each peer; default: the usable cores",
    )
    parser.add_argument(
        "--rate", type=float, help="of chat, requests/s; default: 0.8 of what batchdeck can serve"
    )
    parser.add_argument("--quick", action="store_true", help="one round of short workloads")
    parser.add_argument(
        "--cache", type=Path, default=platformdirs.user_cache_path("batchdeck") / "peers"
    )
    options = parser.parse_args()
    for name, known in (("workloads", RECIPES), ("peers", PEERS)):
        chosen = [part.strip() for part in getattr(options, name).split(",")]
        for part in chosen:
            if part not in known:
                parser.error(f"--{name}: {part!r} is none; it must be of {', '.join(known)}")
        setattr(options, name, chosen)
    for name in ("rounds", "threads", "rate"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            parser.error(f"--{name}: {value} is too few; it must be more than 0")
    poisson = any(RECIPES[name].is_poisson for name in options.workloads)
    if poisson and options.rate is None and OURS not in options.peers:
        parser.error("--rate is needed for chat without batchdeck")
    if options.quick:
        options.rounds = 1
    options.cache = options.cache.resolve()
    return options


def _checkpoint(cache: Path) -> Path:
    """The model's folder, written if it is not there yet."""
    folder = cache / "checkpoint"
    if not folder.exists():
        say("writing the model")
        unfinished = folder.with_suffix(".unfinished")
        load_model("387m", torch.device("cpu")).save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def _load(
    comparison: Comparison, options: argparse.Namespace, checkpoint: Path, recipes: list[Recipe]
) -> list[str]:
    """Set all peers up, then load them.

    Returns:
        What there is to say of each: its version, its settings, whether it computes the model.
    """
    ready = {}
    for name in options.peers:
        try:
            ready[name] = PEERS[name].set_up(options.cache, checkpoint, say)
        except PeerMissingError as error:
            comparison.failed[name] = str(error)
    reference = Reference(checkpoint, CHECK.make(0))
    lengths = [recipe.make(0).lengths for recipe in (*recipes, CHECK)]
    abouts = []
    for name, (python, model) in ready.items():
        peer = PEERS[name]
        variables = peer.variables | {"OMP_NUM_THREADS": str(options.threads)}
        worker = Worker(peer.command(python), variables, options.cache / f"{name}.log")
        comparison.workers[name] = worker
        setup = Setup(
            model=str(model),
            threads=options.threads,
            max_seqs=max(map(len, lengths)),
            max_len=max(map(max, lengths)),
            cache_lengths=max(lengths, key=sum),
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
        say(f"{name} is loaded")
    return abouts


def _rate(recipe: Recipe, comparison: Comparison, options: argparse.Namespace) -> float | None:
    """Arrivals a second of a recipe."""
    if not recipe.is_poisson:
        return None
    if options.rate is not None:
        return float(options.rate)
    if OURS not in comparison.workers:
        raise SystemExit(f"{recipe.name} needs --rate: {OURS} {comparison.failed[OURS]}")
    try:
        return comparison.rate(recipe)
    except WorkerError as error:
        raise SystemExit(f"{recipe.name} needs --rate: {OURS}: {error}") from error


if __name__ == "__main__":
    main()
