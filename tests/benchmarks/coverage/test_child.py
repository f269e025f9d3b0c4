"""A function runs in a process of its own, and its ends are reported."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from benchmarks.coverage.child import NoAnswerError, in_child


def double(number: int) -> int:
    return 2 * number


def crash(number: int) -> int:
    os.kill(os.getpid(), number)
    return number


def leave(code: int) -> int:
    os._exit(code)


def hang(_: int) -> int:
    signal.pause()
    return 0


def test_an_answer_comes_back() -> None:
    assert in_child(double, 21, 60) == 42


@pytest.mark.parametrize(
    ("function", "argument", "told"),
    [(crash, signal.SIGABRT, "ended by SIGABRT"), (leave, 3, "ended with 3")],
)
def test_a_crash_is_told(function: object, argument: int, told: str) -> None:
    with pytest.raises(NoAnswerError, match=told):
        in_child(function, argument, 60)  # type: ignore[arg-type]


def test_what_hangs_is_ended() -> None:
    with pytest.raises(NoAnswerError, match="no end within 1 s"):
        in_child(hang, 0, 1)
    assert not multiprocessing.active_children()
