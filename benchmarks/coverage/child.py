"""Child: a function in a process of its own, so that a crash or a hang is an answer too."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")

# Processes come from one that has imported what takes seconds, and has started no thread.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["benchmarks.coverage.survey"])


class NoAnswerError(Exception):
    """A process ended without an answer, or was ended; the message says how."""


def in_child(function: Callable[[Argument], Answer], argument: Argument, seconds: float) -> Answer:
    """The result of a function in a new process, whose processes end with it.

    Args:
        function: of a module, so that it can be found there.
        seconds: that it may take.

    Raises:
        NoAnswerError: it crashed or took too long.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_answer, args=(sender, function, argument))
    process.start()
    sender.close()
    assert process.pid is not None
    try:
        if not receiver.poll(seconds):
            raise NoAnswerError(f"no end within {seconds:.0f} s")
        answer: Answer = receiver.recv()
        return answer
    except EOFError:
        process.join(seconds)
        raise NoAnswerError(_how_ended(process.exitcode)) from None
    finally:
        receiver.close()
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not have had the time to lead a group
        process.join()


def _answer(sender: Connection, function: Callable[[Argument], Answer], argument: Argument) -> None:
    os.setsid()
    # Libraries write there, and the terminal has the table.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sender.send(function(argument))
    sender.close()


def _how_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"ended with {code}"
