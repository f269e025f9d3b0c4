"""The program that `benchmarks.screen` measures: an engine with the interface, or without.

    python -m benchmarks.screen.streaming --pipe FD {screen,headless} [--switch-ms X] [--share X]
                                          [--depth N --context N --sessions N --step-seconds X]

It reads its settings where `tui` does, and answers what comes through the pipe: `look` with a
`Look`, a number with the engine's step records since that one, prompts (headless only) by starting
the replies. With `--depth` a device that stands in for the model computes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

import psutil

from app.process.serving import load_model
from app.screens import tui
from app.screens.feeds import cadence
from app.settings.layers import load_settings
from app.settings.settings import Settings
from app.store.store import Store
from benchmarks.screen import stand_in
from benchmarks.screen.look import Look
from benchmarks.screen.loop_probe import LoopProbe, ProbedLoops
from engine.api.client import ChatMessage, Submission
from engine.api.status import EnginePhase
from engine.api.stream import RequestStream
from engine.serving.host import EngineHost
from engine.serving.loading import ModelLoader


class Answers:
    """Answers what the benchmark asks, on a thread that sleeps in between."""

    def __init__(
        self, pipe: Connection, host: EngineHost, options: argparse.Namespace, probe: LoopProbe
    ) -> None:
        self._pipe = pipe
        self._host = host
        self._options = options
        self._probe = probe
        self._step = 0
        self._running = 0
        threading.Thread(target=self._answer, name="answers", daemon=True).start()

    def _answer(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                match self._pipe.recv():
                    case "look":
                        self._pipe.send(self._look())
                    case int(since):
                        self._pipe.send(self._host.step_records(since))
                    case prompts:
                        consume(self._host, prompts)

    def _look(self) -> Look:
        status = self._host.status()
        if status.phase is EnginePhase.READY and self._options.switch_ms is not None:
            sys.setswitchinterval(self._options.switch_ms / 1000)
        for record in self._host.step_records(self._step):
            self._step, self._running = record.step, record.running - len(record.finished)
        threads: dict[str, float] = {}
        for thread in threading.enumerate():
            if thread.ident is not None:
                clock = time.pthread_getcpuclockid(thread.ident)
                threads[thread.name] = threads.get(thread.name, 0.0) + time.clock_gettime(clock)
        now, total = time.monotonic(), time.process_time()
        memory = psutil.Process().memory_info().rss
        lags = self._probe.take()
        return Look(now, status.phase, self._step, self._running, threads, total, memory, lags)


def consume(host: EngineHost, prompts: Sequence[str]) -> None:
    """Ask for the replies and drain them as they come, on a thread of their own."""
    news = threading.Event()
    sampling = load_settings().sampling
    streams: list[RequestStream] = [
        host.submit(
            Submission(messages=(ChatMessage("user", prompt),), sampling=sampling), news.set
        )
        for prompt in prompts
    ]

    def drain() -> None:
        open_ = list(streams)
        while open_:
            news.wait()
            news.clear()
            deltas = [(stream, stream.drain()) for stream in open_]
            open_ = [stream for stream, delta in deltas if delta is None or delta.finish is None]

    threading.Thread(target=drain, name="consumer", daemon=True).start()


def with_interface(host: EngineHost, settings: Settings) -> None:
    store = Store(settings.store_file)
    try:
        tui.run(host, store, settings, settings.load_request())
    finally:
        store.close()


def stand_in_loader(options: argparse.Namespace) -> ModelLoader:
    return partial(
        stand_in.load,
        depth=options.depth,
        context=options.context,
        sessions=options.sessions,
        step_seconds=options.step_seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("screen", "headless"))
    parser.add_argument("--pipe", type=int, required=True)
    parser.add_argument("--switch-ms", type=float)
    parser.add_argument("--share", type=float)
    parser.add_argument("--depth", type=int)
    parser.add_argument("--context", type=int)
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--step-seconds", type=float)
    options = parser.parse_args()
    if options.share is not None:
        cadence.SHARE = options.share
    settings = load_settings()
    host = EngineHost(load_model if options.depth is None else stand_in_loader(options))
    probe = LoopProbe()
    Answers(Connection(options.pipe), host, options, probe)
    if options.mode == "screen":
        asyncio.set_event_loop_policy(ProbedLoops(probe))
        with_interface(host, settings)
    else:
        host.load(settings.load_request())
        threading.Event().wait()


if __name__ == "__main__":
    main()
