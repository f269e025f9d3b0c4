"""leaving: ends the process, even while a thread is in a call that cannot be interrupted."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

# The watchdog has ended by now: a hanging thread must not delay the end of the process.
JOIN_SECONDS = 2.0


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
