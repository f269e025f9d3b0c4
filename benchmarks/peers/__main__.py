"""Tokens per second, latencies and memory of batchdeck beside its peers, on one processor.

    python -m benchmarks.peers [--rounds N] [--workloads 1x128,chat] [--peers batchdeck,llama.cpp]
                               [--weights bf16,int8,int4] [--models 387m,qwen3-0.6b]
                               [--level avx2|avxvnni|avx512|amx] [--threads N] [--rate R] [--quick]
                               [--cache FOLDER]

Random models are served by batchdeck, by transformers (`generate` over a static batch,
and continuous batching), by OpenVINO GenAI (its cache in its default precision and in bfloat16) and
by llama.cpp. One has Qwen2's shape with 387 M parameters, the others have the shapes of Qwen3-0.6B
and Qwen3-1.7B with their vocabulary. All peers get the same token ids, decode greedily to a fixed
length and use the same number of threads. They take turns in one run, each in a process that stays
loaded and sleeps meanwhile; figures are medians over the rounds. So a model must fit into memory
once for each line of a table: choose peers and weights for a large one.

Weights have the widths that are chosen. Each peer has forms of its own for a width, and the foot
says what they are and which matrices have them. batchdeck in bf16 stands in every table.

All are held to one level of instructions, as far as they let themselves be held: what holds each
stands above each table. Below AVX-512, transformers and OpenVINO compute in float32, for neither
has products of bfloat16 there.

The first run downloads and builds the peers into the cache folder (some minutes). A peer that
cannot be had is left out, with the reason. Where there is no GPU, set
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, as for batchdeck itself.

The floor of a decode step is its weights and live keys and values over the read bandwidth, or its
FLOPs over the rate of large matrix products, whichever takes longer. The bandwidth is the mean of
what a sum over 1 GiB reads just before and after the peer's run, for it may double within minutes;
the rate of products is the best of all rounds. In int8 every matrix has a byte a weight and a
scale of two bytes a row; in int4 it has half a byte and a scale for each 64 weights of a row,
embedding and head included; and products are those of 8-bit integers, if they are faster.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

import torch
import transformers

from benchmarks.heading import heading
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.floor import Machine
from benchmarks.peers.loading import load
from benchmarks.peers.models import checkpoint
from benchmarks.peers.options import options
from benchmarks.peers.peers import OUR_PLAIN, held
from benchmarks.peers.reference import model_shape
from benchmarks.peers.table import table
from benchmarks.peers.width import Weights
from benchmarks.peers.worker import WorkerError
from benchmarks.peers.workload import RECIPES, Recipe

# More than this of a core while it should sleep, and a peer disturbs the others.
IDLE_CORES = 0.02


def main() -> None:
    chosen = options(__doc__)
    # It holds for what is measured of the machine, and workers inherit it.
    os.environ.update(chosen.level.variables)
    torch.set_num_threads(chosen.threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    say(f"cache: {chosen.cache}")
    for number, model in enumerate(chosen.models):
        if number:
            print()
        compare(model, chosen)


def compare(model: str, chosen: argparse.Namespace) -> None:
    """Run all rounds on one model and print what came of them."""
    recipes = [RECIPES[name] for name in chosen.workloads]
    if chosen.quick:
        recipes = [recipe.shorter() for recipe in recipes]
    dtype = getattr(torch, chosen.level.dtype)
    folder = checkpoint(model, chosen.cache, say)
    comparison = Comparison(say)
    with contextlib.closing(comparison):
        abouts = load(comparison, chosen, folder, recipes)
        machines = [Machine.measure(dtype)]
        rates = {recipe: _rate(recipe, comparison, chosen) for recipe in recipes}
        for number in range(chosen.rounds + 1):
            comparison.round(rates, number, is_kept=number > 0)
            machines.append(Machine.measure(dtype))
    machine = Machine.best(machines)
    print(
        heading(
            f"{chosen.threads} threads",
            f"multiplies {chosen.level.dtype} at {machine.matrix_rate / 1e12:.2f} TFLOPS "
            f"and int8 at {machine.integer_rate / 1e12:.2f} TOPS",
            f"rounds: {chosen.rounds}",
        )
    )
    for name, (about, agreement) in abouts.items():
        print(f"{name}: {about.version}\n  {about.settings}\n  {agreement}")
    for name, why in comparison.failed.items():
        print(f"{name}: left out. {why}")
    for name, taken in comparison.idle_cores():
        if taken > IDLE_CORES:
            print(f"{name}: DOES NOT SLEEP while others run; it takes {taken:.2f} cores")
    shape = model_shape(folder)
    contenders = chosen.contenders
    weights = {name: Weights.of(folder, one.form.width) for name, one in contenders.items()}
    for recipe, rate in rates.items():
        arrivals = "" if rate is None else f", {rate:.2f} requests/s (Poisson)"
        print(f"\n{recipe.name} of {model}: {recipe}{arrivals}")
        results = comparison.results(recipe.name)
        print(held([contenders[name] for name in results], chosen.level))
        print(table(recipe.make(0), results, weights, shape, machine))
    print("\nweights")
    for name, (about, _) in abouts.items():
        print(f"{name}: {contenders[name].form.scheme}\n  {about.weights}")
    for one in dict.fromkeys(weights.values()):
        print(f"floor of {one.width.name}: reads {one.nbytes / 1e6:,.0f} MB of weights")
    sys.stdout.flush()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rate(recipe: Recipe, comparison: Comparison, chosen: argparse.Namespace) -> float | None:
    """Arrivals a second of a recipe."""
    if not recipe.is_poisson:
        return None
    if chosen.rate is not None:
        return float(chosen.rate)
    if OUR_PLAIN not in comparison.workers:
        raise SystemExit(f"{recipe.name} needs --rate: {OUR_PLAIN} {comparison.failed[OUR_PLAIN]}")
    try:
        return comparison.rate(recipe)
    except WorkerError as error:
        raise SystemExit(f"{recipe.name} needs --rate: {OUR_PLAIN}: {error}") from error


if __name__ == "__main__":
    main()
