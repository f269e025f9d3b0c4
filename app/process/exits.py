"""ExitCode: the exit codes of the program, and leave, which ends the process at once."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from enum import IntEnum

# The watchdog has ended by now: a hanging thread must not delay the end of the process.
JOIN_SECONDS = 2.0


class ExitCode(IntEnum):
    """The exit codes of docs/operating.md. Those from 129 on are 128 + the number of a signal, as
    in shells."""

    OK = 0
    FAILED = 1
    """A line was refused, a reply or a measurement failed, or the doctor found that something
    necessary is missing."""
    USAGE = 2
    """A flag, an environment variable or the configuration file is wrong."""
    NO_MODEL = 3
    """The model could not be loaded."""
    NO_FILE = 4
    """Standard input, standard output or the store cannot be read or written."""
    CRASHED = 70
    HUNG_UP = 129
    """The terminal of the interface was closed, or that of the server before it served."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143


def leave(code: int) -> None:
    """End the process at once if another thread still runs; otherwise leave that to the
    interpreter.

    An engine that is loading may be importing torch, which takes 4 s. The interpreter's own end
    would wait for the lock of the dynamic linker, which that import holds. And if it stops a thread
    inside C++, that aborts the process. All of the program's files and sockets are closed by now.
    """
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if not others:
        return
    deadline = time.monotonic() + JOIN_SECONDS
    for thread in others:
        if not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it may be None or closed
            stream.flush()
    os._exit(code)
