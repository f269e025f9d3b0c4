"""leaving: the end of the process, also while a thread is in what nothing can break off."""

from __future__ import annotations

import contextlib
import os
import sys
import threading


def leave(code: int) -> None:
    """End the process here if a daemon thread still runs; else leave it to the interpreter.

    An engine that is loading may be in the import of torch, 4 s long. The interpreter's own end
    waits for the lock of the dynamic linker, which that import holds, and a thread that it stops
    amid C++ aborts the process. What the program had opened is closed by now.
    """
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if not any(thread.daemon for thread in others):
        return
    for thread in others:
        if not thread.daemon:
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or no more
            stream.flush()
    os._exit(code)
