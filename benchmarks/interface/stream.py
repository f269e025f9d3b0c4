"""stream: what the interface takes while many chats stream, and how soon it answers."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.interface import keys
from benchmarks.screen.look import Look
from benchmarks.screen.models import MODELS
from benchmarks.screen.program import Program, program
from benchmarks.screen.window import ENGINE_THREADS
from engine.api.telemetry import percentile

SETTLE_SECONDS = 5.0
SEED = 15
# Of a run of 30 minutes, at its beginning: after 14 minutes at 20 steps a second the engine has the
# 16,384 steps that it keeps, and each block of the pool has been used once.
FILLING_SHARE = 0.5
MEMORY_SECONDS = 5.0
# Places in the batch of a model on a processor, unless a knob is turned: more chats would wait.
REAL_CHATS = 32


def measure(engine: str, options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of one engine: `scripted` is a device that gives each chat 20 tokens a second,
    `real` the built-in model, as fast as the cores compute it."""
    name = {"scripted": "paced", "real": "builtin"}[engine]
    if engine == "real":
        options = in_one_batch(options)
    with tempfile.TemporaryDirectory() as folder:
        MODELS[name].save(Path(folder))
        with program("screen", MODELS[name], Path(folder), {}, options) as one:
            yield from _idle(one, engine, options.seconds)
            one.begin()
            one.go()
            yield from _streaming(one, engine, options)
            if options.minutes:
                yield from _memory(one, engine, options)


def in_one_batch(options: argparse.Namespace) -> argparse.Namespace:
    """The options with no more chats than stream at once on a real engine."""
    sessions = min(options.sessions, REAL_CHATS)
    return argparse.Namespace(**{**vars(options), "sessions": sessions})


def _idle(one: Program, engine: str, seconds: float) -> Iterator[Figure]:
    time.sleep(SETTLE_SECONDS)
    before = one.look()
    time.sleep(seconds)
    after = one.look()
    used = 100 * (after.process - before.process) / (after.time - before.time)
    yield Figure("idle", "CPU of the program", used, "%", f"{engine}: of a core").below(2)


def _streaming(one: Program, engine: str, options: argparse.Namespace) -> Iterator[Figure]:
    chats = f"{engine}: {options.sessions} chats stream"
    time.sleep(SETTLE_SECONDS)
    before = one.look()
    time.sleep(options.seconds)
    after = one.look()
    rate = options.sessions * (after.step - before.step) / (after.time - before.time)
    yield Figure("stream", "tokens", rate, "/s", chats)
    yield Figure(
        "stream", "CPU of the interface", 100 * interface_share(before, after), "%", chats
    ).below(25)
    assert one.terminal is not None
    taken = keys.press(one.terminal, SEED, lambda pressed: pressed < options.keys)
    yield from answers("stream", taken, (*after.lags, *one.look().lags), chats)


def answers(
    part: str, taken: Sequence[float], lags: Sequence[float], against: str
) -> Iterator[Figure]:
    """How soon keys and the event loop answer."""
    ordered, late = sorted(1000 * key for key in taken), sorted(1000 * lag for lag in lags)
    yield Figure(part, "key to its letter, p50", percentile(ordered, 0.5), "ms", against)
    yield Figure(part, "key to its letter, p99", percentile(ordered, 0.99), "ms", against).below(50)
    yield Figure(part, "event loop is late, p99", percentile(late, 0.99), "ms", against).below(50)
    yield Figure(part, "event loop is late, most", late[-1], "ms", against)


def interface_share(before: Look, after: Look) -> float:
    """Of a core, what the threads take that are not the engine's."""
    used = sum(
        cpu - before.threads.get(name, 0.0)
        for name, cpu in after.threads.items()
        if name not in ENGINE_THREADS
    )
    return used / (after.time - before.time)


def _memory(one: Program, engine: str, options: argparse.Namespace) -> Iterator[Figure]:
    """How much more memory the program has once its buffers have filled, and then at the end.

    What the chats were told is kept, and is no leak: a token is a word of text.
    """
    started = time.monotonic()
    seconds = 60 * options.minutes
    samples: list[int] = []
    while time.monotonic() - started < seconds:
        if not one.look().running:
            one.begin(again=True)
            one.go()
        samples.append(one.look().memory)
        time.sleep(MEMORY_SECONDS)
    filled = round(FILLING_SHARE * len(samples))
    third = (len(samples) - filled) // 3
    start, first, last = (
        sorted(part)[third // 2]
        for part in (samples[:third], samples[filled : filled + third], samples[-third:])
    )
    against = f"{engine}: {start / 1e6:,.0f} MB, {options.minutes:g} minutes of chats"
    yield Figure("memory", "grown while buffers fill", 100 * (first - start) / start, "%", against)
    against = f"{engine}: {first / 1e6:,.0f} MB, the last {1 - FILLING_SHARE:.0%} of that"
    grown = 100 * (last - first) / first
    yield Figure("memory", "grown from there to the end", grown, "%", against).below(2)
