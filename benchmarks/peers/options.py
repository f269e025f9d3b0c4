"""Options: the command line of `python -m benchmarks.peers`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import platformdirs

from benchmarks.peers.level import LEVELS, Level
from benchmarks.peers.models import MODELS
from benchmarks.peers.peers import OURS, PEERS, contenders
from benchmarks.peers.width import WIDTHS
from benchmarks.peers.workload import RECIPES
from engine import native


def options(description: str | None) -> argparse.Namespace:
    """The options. Impossible ones are refused, and end the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="besides the first, which warms up")
    parser.add_argument("--workloads", default=",".join(RECIPES))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--weights", default="bf16", help=f"some of {', '.join(WIDTHS)}")
    parser.add_argument("--models", default="387m", help=f"some of {', '.join(MODELS)}")
    parser.add_argument(
        "--level", choices=LEVELS, help="of instructions, for all; default: batchdeck's own here"
    )
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
    chosen = parser.parse_args()
    for name, known in (
        ("workloads", RECIPES),
        ("peers", PEERS),
        ("weights", WIDTHS),
        ("models", MODELS),
    ):
        parts = [part.strip() for part in getattr(chosen, name).split(",")]
        for part in parts:
            if part not in known:
                parser.error(f"--{name}: {part!r} is none; it must be of {', '.join(known)}")
        setattr(chosen, name, parts)
    chosen.contenders = contenders(chosen.peers, chosen.weights)
    if not chosen.contenders:
        parser.error(f"--weights: none of {', '.join(chosen.peers)} serves them")
    for name in ("rounds", "threads", "rate"):
        value = getattr(chosen, name)
        if value is not None and value <= 0:
            parser.error(f"--{name}: {value} is too few; it must be more than 0")
    poisson = any(RECIPES[name].is_poisson for name in chosen.workloads)
    if poisson and chosen.rate is None and OURS not in chosen.peers:
        parser.error("--rate is needed for chat without batchdeck")
    chosen.level = pick_level(parser, chosen.level)
    if chosen.quick:
        chosen.rounds = 1
    chosen.cache = chosen.cache.resolve()
    return chosen


def pick_level(parser: argparse.ArgumentParser, name: str | None) -> Level:
    """The level to hold all to: the one of that name, or what batchdeck's kernels use here."""
    kernels = native.kernels()
    if kernels is None:
        if name is None:
            parser.error(f"--level is needed, for batchdeck has no kernels: {native.why_not()}")
        return LEVELS[name]
    if name is not None and name not in kernels.levels():
        parser.error(f"--level: this processor has no {name}; it has {', '.join(kernels.levels())}")
    return LEVELS[name or kernels.level()]
