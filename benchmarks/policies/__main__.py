"""The published comparison of batching policies, simulated at its own scale and run here.

    python -m benchmarks.policies [--parts A,B,C,D,E] [--svg FOLDER] [--seed N]
                                  [--model builtin|387m] [--rounds N]

A. A burst at the scale of Anyscale 2023, every policy at every spread of output lengths; then that
   run as its published code ran it.
B. Poisson arrivals: latencies, and the gap by rate.
C. Throughput against concurrency, and arithmetic intensity by batch.
D. KV slots given and not used, and what forks share.
E. The comparison scaled down, on a loaded model, beside transformers' left-padded `generate`.

A to D run in virtual time and give the same figures on any machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from app.bench.plots import Chart, to_svg
from benchmarks.heading import heading
from benchmarks.options import add_parts

Part = Callable[[argparse.Namespace], dict[str, Chart]]


def burst(options: argparse.Namespace) -> dict[str, Chart]:
    from benchmarks.policies import burst, replay

    charts = burst.run(options.seed)
    replay.replay(options.seed)
    return charts


def poisson(options: argparse.Namespace) -> dict[str, Chart]:
    from benchmarks.policies import poisson

    return poisson.run(options.seed)


def concurrency(options: argparse.Namespace) -> dict[str, Chart]:
    from benchmarks.policies import concurrency

    return concurrency.run(options.seed)


def memory(options: argparse.Namespace) -> dict[str, Chart]:
    from benchmarks.policies import memory

    return memory.run(options.seed)


def real(options: argparse.Namespace) -> dict[str, Chart]:
    from benchmarks.policies import real

    return real.run(options.model, options.rounds, options.seed)


PARTS: dict[str, Part] = {"A": burst, "B": poisson, "C": concurrency, "D": memory, "E": real}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_parts(parser, PARTS)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", choices=("builtin", "387m"), default="builtin")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(heading(), flush=True)
    for part in options.parts:
        start = time.perf_counter()
        charts = PARTS[part](options)
        print(f"(part {part}: {time.perf_counter() - start:.0f} s)", flush=True)
        if options.svg is not None:
            options.svg.mkdir(parents=True, exist_ok=True)
            for name, chart in charts.items():
                to_svg(chart, options.svg / f"policies-{name}.svg")


if __name__ == "__main__":
    main()
