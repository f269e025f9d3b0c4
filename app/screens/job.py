"""Job: the program as its shell sees it, which can stop it and bring it back."""

from __future__ import annotations

import os
import signal
import sys

import psutil


def can_suspend() -> bool:
    """Whether a shell would notice that the program has stopped, and could go on with it.

    It would not if the terminal runs nothing but the program, as a window of tmux may.
    """
    if sys.platform == "win32":
        return False
    group, session = os.getpgrp(), os.getsid(0)
    try:
        above = psutil.Process().parent()
        while above is not None and os.getpgid(above.pid) == group:
            above = above.parent()  # make and scripts stop with the program
        return above is not None and os.getsid(above.pid) == session
    except (psutil.Error, OSError):
        return False


def suspend() -> None:
    """Stop the program and all that was started with it, such as make, until the shell goes on with
    them."""
    os.killpg(0, signal.SIGTSTP)
