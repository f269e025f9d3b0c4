"""serve: a worker's side of the line protocol, and how it drives an engine through a workload.

A line on stdin is a command, and its answer is a line on stdout. Both are JSON:

    {"do": "load", "setup": {...}}    ->  {"about": {"version": ..., "settings": ..., ...},
                                           "seconds": ...}
    {"do": "run", "workload": {...}}  ->  {"run": {"requests": [...], "peak_bytes": ...}}, or
                                          {"run": null}: this peer cannot take this workload
    {"do": "encode", "texts": [...]}  ->  {"encode": [[token id, ...], ...]}
    {"do": "score", "windows": [...]} ->  {"score": [log-likelihood, ...]}, or
                                          {"score": null}: this peer gives no log-probabilities
    {"do": "memory"}                  ->  {"memory": {"resident_bytes": ..., ...}}
    {"do": ...} that fails            ->  {"error": ...}

A worker ends when stdin does. What its libraries write to standard output goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Protocol, TextIO, runtime_checkable

from benchmarks.peers.workload import Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """The sizes that an engine is loaded for. Memory is for the largest workload of the benchmark.

    Attributes:
        model: the model in the peer's own form.
        threads: how many threads compute.
        max_seqs: the most sequences at once.
        max_len: the most tokens of one sequence.
        cache_lengths: the tokens of each sequence, for the workload whose cache is largest.
        budget: the most tokens of a step, where the engine lets that be chosen.
        dtype: in what torch and oneDNN compute, as torch names it (`benchmarks.peers.level`).
    """

    model: str
    threads: int
    max_seqs: int
    max_len: int
    cache_lengths: tuple[int, ...]
    budget: int = 2048
    dtype: str = "bfloat16"

    def blocks(self, block_size: int, spare: int) -> int:
        """How many cache blocks the largest workload needs, and `spare` ones more."""
        return sum(-(-length // block_size) for length in self.cache_lengths) + spare


@dataclass(frozen=True, slots=True)
class About:
    """The description of an engine.

    Attributes:
        version: its version, in words.
        settings: the settings that were chosen for it, in words.
        weights: in which types it holds which matrices, in words.
    """

    version: str
    settings: str
    weights: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a worker, in bytes; None where the system does not say.

    Attributes:
        resident_bytes: pages that are resident now, those of mapped files among them.
        peak_bytes: the most of them since the last load or run began.
        helper_bytes: private pages of its child processes.
    """

    resident_bytes: int | None
    peak_bytes: int | None
    helper_bytes: int


@dataclass(slots=True)
class Served:
    """One request: when it came, and each of its tokens, in seconds after the start of the run."""

    arrival: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Server(Protocol):
    """A peer's engine in its worker."""

    def load(self, setup: Setup) -> About: ...

    def run(self, workload: Workload) -> list[Served] | None:
        """Serve a workload; None if the engine cannot take it."""
        ...


@runtime_checkable
class Encoding(Protocol):
    """A peer that can turn text into token ids."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as the beginning of a prompt; special tokens in it are plain text."""
        ...


@runtime_checkable
class Scoring(Protocol):
    """A peer that can give log-probabilities of a prompt's tokens."""

    def score(self, windows: Sequence[Sequence[int]]) -> list[float]:
        """For each window the sum over its tokens, but for the first, of their natural
        log-probabilities, each after those before it."""
        ...


class Stepping(Protocol):
    """An engine that computes when it is told to."""

    def submit(self, index: int, prompt: Sequence[int], output_tokens: int) -> None: ...

    def step(self) -> Iterable[tuple[int, int]]:
        """Compute one step of the batch.

        Returns:
            (request, token) for each new token.
        """
        ...


def drive(engine: Stepping, workload: Workload) -> list[Served]:
    """Submit each request when it comes, and step as long as any is unfinished."""
    served = [Served(arrival) for arrival in workload.arrivals]
    coming = deque(range(len(served)))
    running = 0
    start = perf_counter()
    while coming or running:
        while coming and served[coming[0]].arrival <= perf_counter() - start:
            index = coming.popleft()
            engine.submit(index, workload.prompts[index], workload.output_tokens)
            running += 1
        if not running:
            sleep(max(0.0, served[coming[0]].arrival - (perf_counter() - start)))
            continue
        news = engine.step()
        now = perf_counter() - start
        for index, token in news:
            served[index].times.append(now)
            served[index].tokens.append(token)
            running -= len(served[index].tokens) == workload.output_tokens
    return served


def serve(server: Server) -> None:
    """Answer commands until stdin ends."""
    # Libraries write to file descriptor 1 whatever Python's sys.stdout is.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer(server, sys.stdin, answers)


def answer(server: Server, commands: Iterable[str], answers: TextIO) -> None:
    for line in commands:
        try:
            told = _do(server, json.loads(line))
        except Exception as error:
            traceback.print_exc()
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=answers, flush=True)


def _do(server: Server, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "load":
        setup = Setup(**command["setup"])
        reset_peak()
        start = perf_counter()
        about = server.load(setup)
        return {"about": asdict(about), "seconds": perf_counter() - start}
    if command["do"] == "memory":
        return {"memory": asdict(memory())}
    if command["do"] == "encode":
        if not isinstance(server, Encoding):
            raise TypeError("this peer encodes no text")
        return {"encode": server.encode(command["texts"])}
    if command["do"] == "score":
        if not isinstance(server, Scoring):
            return {"score": None}
        return {"score": server.score(command["windows"])}
    workload = Workload.from_json(command["workload"])
    reset_peak()
    served = server.run(workload)
    if served is None:
        return {"run": None}
    for request in served:
        if len(request.tokens) != workload.output_tokens:
            raise ValueError(f"{len(request.tokens)} tokens instead of {workload.output_tokens}")
    return {"run": {"requests": [asdict(request) for request in served], "peak_bytes": peak()}}


def reset_peak() -> None:
    """Let the peak of resident memory begin anew (proc(5), clear_refs)."""
    clear_refs = Path("/proc/self/clear_refs")
    if clear_refs.is_file():
        clear_refs.write_text("5")


def peak() -> int | None:
    """Most resident bytes since `reset_peak`; None where the system does not say."""
    return _status("VmHWM")


def memory() -> Memory:
    """Memory of this process, now."""
    helpers = sum(map(_private, _descendants("self")))
    return Memory(_status("VmRSS"), peak(), helpers)


def _status(name: str) -> int | None:
    """A size in bytes of proc(5)'s status."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    for line in status.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _descendants(process: str) -> Iterator[str]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in children.read_text().split():
            yield child
            yield from _descendants(child)


def _private(process: str) -> int:
    """Bytes that only this process has resident; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
