"""A worker without a model: token i of a reply is i, each 2 ms. Arguments choose how it fails."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.peers.serve import About, Served, Setup, drive, serve
from benchmarks.peers.workload import Workload

STEP_SECONDS = 0.002


class Fake:
    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour
        self._runs = 0
        self._left: dict[int, list[int]] = {}

    def load(self, setup: Setup) -> About:
        if self._behaviour == "refuse":
            raise RuntimeError("no such model")
        ctypes.CDLL(None).puts(b"a library greets on file descriptor 1")
        ctypes.CDLL(None).fflush(None)
        print("and so does Python")
        return About("1.0", f"{setup.threads} threads of {setup.model}", "every matrix in dust")

    def run(self, workload: Workload) -> list[Served] | None:
        self._runs += 1
        if self._behaviour == "end" or (self._behaviour == "end-later" and self._runs > 1):
            print("out of luck", file=sys.stderr, flush=True)
            sys.exit(3)
        if self._behaviour == "batch" and not workload.is_batch:
            return None
        served = drive(self, workload)
        if self._behaviour == "short":
            del served[0].tokens[-1]
        return served

    def submit(self, index: int, prompt: Sequence[int], output_tokens: int) -> None:
        self._left[index] = list(range(output_tokens))

    def step(self) -> Iterator[tuple[int, int]]:
        time.sleep(STEP_SECONDS)
        news = [(index, left.pop(0)) for index, left in self._left.items()]
        self._left = {index: left for index, left in self._left.items() if left}
        return iter(news)


class Reader(Fake):
    """One that can read: a letter is a token, and each is as likely as not."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[1, *map(ord, text)] for text in texts]

    def score(self, windows: Sequence[Sequence[int]]) -> list[float]:
        return [(len(window) - 1) * math.log(0.5) for window in windows]


if __name__ == "__main__":
    behaviour = sys.argv[1] if len(sys.argv) > 1 else ""
    serve(Reader(behaviour) if behaviour == "read" else Fake(behaviour))
