"""loading: how soon the interface answers while the program loads its first model."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.interface import keys
from benchmarks.interface.stream import answers
from benchmarks.screen.models import MODELS
from benchmarks.screen.program import Program, launched
from engine.api.status import EnginePhase

LOADED = (EnginePhase.READY, EnginePhase.FAILED)


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Keys are pressed from the first screen until the model is ready, of some starts."""
    taken: list[float] = []
    lags: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        MODELS["builtin"].save(Path(folder))
        for seed in range(options.rounds):
            with launched("screen", MODELS["builtin"], Path(folder), {}, options) as one:
                pressed, late = _load(one, seed)
            taken += pressed
            lags += late
    yield from answers("load", taken, lags, "real: the built-in model is loaded")


def _load(one: Program, seed: int) -> tuple[list[float], list[float]]:
    """The seconds that keys took, and that the loop was late, from the first screen on."""
    assert one.terminal is not None
    one.terminal.seen_at("Help", keys.WAIT_SECONDS)
    one.look()
    late: list[float] = []

    def is_loading(_pressed: int) -> bool:
        look = one.look()
        late.extend(look.lags)
        return look.phase not in LOADED

    return keys.press(one.terminal, seed, is_loading), late
