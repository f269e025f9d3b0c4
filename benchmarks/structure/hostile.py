"""Hostile: structures that are meant to do harm, each in a process of its own.

python -m benchmarks.structure.hostile NAME SIDE
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time

import numpy as np
import psutil

from benchmarks.structure.cases import HOSTILE
from benchmarks.structure.sides import SIDES
from benchmarks.structure.timed import timed
from benchmarks.structure.vocab import builtin
from engine.api.errors import InvalidRequestError

HEAD = ("hostile, built-in vocabulary", "by", "outcome", "compile ms", "worst mask ms", "MiB")


def try_hostile(name: str, by: str) -> None:
    """Compile a hostile structure and follow 40 tokens; say how that went, in JSON."""
    side = SIDES[by](builtin().words)
    rng = random.Random(0)
    worst, outcome, before = 0.0, "followed", psutil.Process().memory_info().rss
    started = time.perf_counter()
    try:
        follower = side.compile(HOSTILE[name])()
        compiled = time.perf_counter() - started
        for _ in range(40):
            seconds, bits = timed(follower.mask)
            worst = max(worst, seconds)
            some = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
            if not len(some):
                outcome = "given up"
                break
            follower.accept(int(rng.choice(some.tolist())))
    except InvalidRequestError:
        compiled, outcome = time.perf_counter() - started, "refused"
    except Exception:
        compiled, outcome = time.perf_counter() - started, "raised"
    grown = psutil.Process().memory_info().rss - before
    print(json.dumps([outcome, compiled, worst, grown]))


def measure(seconds: float) -> list[list[str]]:
    """A row for each hostile structure and side."""
    rows = []
    for name, by in itertools.product(HOSTILE, SIDES):
        command = (sys.executable, "-m", "benchmarks.structure.hostile", name, by)
        try:
            # The process takes some seconds to start.
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 10)
        except subprocess.TimeoutExpired:
            rows.append([name, by, f"no end within {seconds:g} s", "", "", ""])
            continue
        if done.returncode:
            rows.append([name, by, f"ended by {done.returncode}", "", "", ""])
            continue
        outcome, compiled, worst, grown = json.loads(done.stdout.splitlines()[-1])
        figures = (f"{1e3 * compiled:.1f}", f"{1e3 * worst:.1f}", f"{grown >> 20}")
        rows.append([name, by, outcome, *figures])
    return rows


if __name__ == "__main__":
    try_hostile(*sys.argv[1:])
