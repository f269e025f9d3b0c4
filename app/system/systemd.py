"""systemd: what a service tells its supervisor, as sd_notify(3) has it; elsewhere nothing."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(*states: str) -> None:
    """Tell states such as READY=1, if this is a service that is to."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    # A socket of Linux's abstract namespace is written with @ for its zero byte.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.sendto("\n".join(states).encode(), address)
    except OSError as error:
        log.warning("systemd cannot be told %s: %s", " ".join(states), error.strerror or error)


def watchdog_seconds() -> float | None:
    """How often at least WATCHDOG=1 is expected; None if it is not."""
    wanted, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if not wanted.isdecimal() or process not in (None, str(os.getpid())):
        return None
    return int(wanted) / 1e6 or None
