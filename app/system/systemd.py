"""systemd: reports the service's state to its supervisor, as sd_notify(3) describes."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(*states: str) -> None:
    """Send states such as READY=1 to the supervisor, if this program is a service that is to
    report."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    # The address of a socket in Linux's abstract namespace begins with a zero byte, written as @.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.sendto("\n".join(states).encode(), address)
    except OSError as error:
        log.warning(
            "systemd cannot be notified of %s: %s", " ".join(states), error.strerror or error
        )


def watchdog_seconds() -> float | None:
    """The maximum of seconds between two WATCHDOG=1; None if none is expected."""
    wanted, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if not wanted.isdecimal() or process not in (None, str(os.getpid())):
        return None
    return int(wanted) / 1e6 or None
