"""leaving: ends the process, also while a thread is in a call that nothing can break off."""

from __future__ import annotations

import contextlib
import os
import sys
import threading


def leave(code: int) -> None:
    """End the process at once if a daemon thread still runs; otherwise leave that to the
    interpreter.

    An engine that is loading may be importing torch, which takes 4 s. The interpreter's own end
    would wait for the lock of the dynamic linker, which that import holds. And if it stops a thread
    amid C++, that aborts the process. All that the program had opened is closed by now.
    """
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if not any(thread.daemon for thread in others):
        return
    for thread in others:
        if not thread.daemon:
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it may be None or closed
            stream.flush()
    os._exit(code)
