"""Worker: a peer in a process of its own, which stays loaded and sleeps while others compute."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.run import Run
from benchmarks.peers.serve import About, Memory, Setup
from benchmarks.peers.workload import Workload

_ROOT = Path(__file__).resolve().parent.parent.parent
_LOAD_SECONDS = 600.0
_RUN_SECONDS = 1800.0
_END_SECONDS = 10.0


class WorkerError(Exception):
    """A worker said that it failed, or ended, or did not answer; the message says which and why."""


class Worker:
    """Starts the process at once.

    Args:
        command: the command of the process, which speaks the protocol of `benchmarks.peers.serve`.
        variables: environment variables of the process, beside those of this one.
        log: the file that takes its standard error.

    Attributes:
        load_seconds: how long `load` took in the process, whose imports were done before.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self.load_seconds = 0.0
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=_ROOT,
                env=os.environ | dict(variables),
                text=True,
                encoding="utf-8",
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def load(self, setup: Setup) -> About:
        """Load the peer's model.

        Raises:
            WorkerError: it failed; the others raise this too.
        """
        told = self._ask({"do": "load", "setup": asdict(setup)}, _LOAD_SECONDS)
        self.load_seconds = told["seconds"]
        return About(**told["about"])

    def run(self, workload: Workload) -> Run | None:
        """Serve a workload; None if this peer cannot take it."""
        told = self._ask({"do": "run", "workload": asdict(workload)}, _RUN_SECONDS)
        return None if told["run"] is None else Run.from_json(told["run"])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        told = self._ask({"do": "encode", "texts": texts}, _RUN_SECONDS)
        found: list[list[int]] = told["encode"]
        return found

    def score(self, windows: Sequence[Sequence[int]]) -> list[float] | None:
        """The log-likelihood of each window (`benchmarks.peers.serve.Scoring`); None if this peer
        gives none."""
        told = self._ask({"do": "score", "windows": windows}, _RUN_SECONDS)
        found: list[float] | None = told["score"]
        return found

    def memory(self) -> Memory:
        """The process's memory now. Before `load` it is that of the interpreter and its imports."""
        return Memory(**self._ask({"do": "memory"}, _LOAD_SECONDS)["memory"])

    @property
    def cpu_seconds(self) -> float:
        """Seconds of processor time that all its threads have used so far."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)

    def close(self) -> None:
        """End the process. It ends when its standard input does; otherwise it is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")  # as a file's end

    def _ask(self, command: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except OSError:
            line = ""
        except queue.Empty:
            raise WorkerError(f"no answer in {seconds:.0f} s (log: {self._log})") from None
        if not line:
            raise WorkerError(f"it ended: {self._last_words()} (log: {self._log})")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise WorkerError(f"{told['error']} (log: {self._log})")
        return told

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"
