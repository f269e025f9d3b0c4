from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.native import kernels_or_skip

native = kernels_or_skip()

ROWS, WIDTH = 512, 256

# An operation of several pieces, and who works at it.
PRELUDE = """
import os, signal, sys, threading
from tests.engine.native.test_pool import Doubling, native

def workers():
    tasks = os.listdir("/proc/self/task")
    names = sorted(open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks)
    return [name for name in names if name.startswith("kernels-")]
"""


class Doubling:
    """A program that doubles a matrix, large enough to be cut into pieces."""

    def __init__(self) -> None:
        self._x = (np.arange(ROWS * WIDTH) % 251).astype(np.float32).reshape(ROWS, WIDTH)
        self._out = np.zeros_like(self._x)
        self._program = native.Program()
        x, out = self._program.buffer(self._x), self._program.buffer(self._out)
        self._program.elementwise((out, 0, WIDTH), (x, 0, WIDTH), "none", None, "none", 2.0)
        one = np.arange(ROWS)
        self._step = native.Step(
            input_ids=one,
            position_ids=one,
            slots=one,
            starts=one[:1],
            counts=np.array([ROWS]),
            block_tables=np.zeros((1, ROWS // 16), np.int64),
            last_tokens=one[:0],
        )

    def is_right(self) -> bool:
        """Whether all pieces were done when the operation had ended."""
        self._out[:] = 0
        self._program.run(self._step, 0, 1)
        return np.array_equal(self._out, 2 * self._x)


@pytest.fixture
def threads() -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_piece_is_done_whatever_the_number_of_threads(count: int) -> None:
    native.set_threads(count)
    assert native.threads() == count
    doubling = Doubling()
    assert all(doubling.is_right() for _ in range(50))


def test_there_is_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="count is 0; it must be at least 1"):
        native.set_threads(0)


@pytest.mark.usefixtures("threads")
def test_callers_take_turns_while_another_changes_the_number_of_threads() -> None:
    native.set_threads(2)
    right: list[bool] = []

    def work() -> None:
        doubling = Doubling()
        right.append(all(doubling.is_right() for _ in range(60)))

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    for count in (1, 3, 2, 4, 1, 2):
        native.set_threads(count)
    for caller in callers:
        caller.join()
    assert right == [True] * 3


# A process of its own for each: threads, forks and signals belong to the whole process.


def test_workers_start_with_the_first_work_and_have_names() -> None:
    done = python("""
native.set_threads(3)
assert workers() == [], workers()
assert Doubling().is_right()
assert workers() == ["kernels-1", "kernels-2"], workers()
native.set_threads(2)
assert Doubling().is_right()
assert workers() == ["kernels-1"], workers()
""")
    assert done.returncode == 0, done.stderr


def test_a_forked_child_computes_with_workers_of_its_own() -> None:
    done = python("""
native.set_threads(3)
ended = threading.Event()

def compute():
    other = Doubling()
    while not ended.is_set():
        assert other.is_right()

busy = threading.Thread(target=compute, daemon=True)
busy.start()
for _ in range(20):  # at some forks, another thread is within an operation
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        assert workers() == []
        assert Doubling().is_right()
        assert workers() == ["kernels-1", "kernels-2"], workers()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert Doubling().is_right()
ended.set()
busy.join()
""")
    assert done.returncode == 0, done.stderr


def test_where_no_threads_are_to_be_had_the_caller_computes_alone() -> None:
    done = python("""
import resource
doubling = Doubling()
native.set_threads(3)
# Less memory than the stack of a thread is left.
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 20), resource.RLIM_INFINITY))
assert doubling.is_right() and doubling.is_right()
assert len(workers()) < 2
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
native.set_threads(2)
assert doubling.is_right()
assert workers() == ["kernels-1"]
""")
    assert done.returncode == 0, done.stderr


def test_a_process_ends_while_workers_wait() -> None:
    done = python("native.set_threads(8); print(Doubling().is_right())")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_workers_take_no_signals() -> None:
    done = python("""
native.set_threads(3)
assert Doubling().is_right()
for task in os.listdir("/proc/self/task"):
    lines = open(f"/proc/self/task/{task}/status").read().splitlines()
    status = dict(line.split(":\\t", 1) for line in lines)
    blocked = int(status["SigBlk"], 16) >> (signal.SIGINT - 1) & 1
    assert blocked == status["Name"].startswith("kernels-"), status["Name"]
""")
    assert done.returncode == 0, done.stderr
