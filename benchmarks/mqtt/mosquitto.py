"""Mosquitto: a broker of its own for a benchmark, on a free port of the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

EXAMPLE = Path(__file__).parents[2] / "examples" / "mosquitto" / "mosquitto.conf"
START_SECONDS = 10.0
# Debian installs it where users' shells do not look for programs.
_PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))


@dataclass(frozen=True, slots=True)
class Mosquitto:
    """A broker that runs.

    Attributes:
        version: what it says of itself, such as "mosquitto version 2.0.11".
    """

    port: int
    version: str
    process: psutil.Process


def shipped_limits() -> tuple[str, ...]:
    """The lines of the configuration in `examples/` that limit how much Mosquitto takes, and how
    fast."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line.startswith(("max_", "set_tcp_")))


@contextmanager
def mosquitto(*options: str) -> Iterator[Mosquitto]:
    """Run a broker until the end of the context.

    Args:
        options: further lines of its configuration.

    Raises:
        SystemExit: Mosquitto is not installed, or does not start.
    """
    program = shutil.which("mosquitto", path=_PLACES)
    if program is None:
        raise SystemExit("mosquitto is not installed; this is measured against it")
    told = subprocess.run([program, "-h"], capture_output=True, text=True, check=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = (f"listener {port} 127.0.0.1", "allow_anonymous true", *options)
    with tempfile.TemporaryDirectory() as folder:
        # Started by root, it becomes another user before it reads files beside this one.
        config = Path(folder, "mosquitto.conf")
        config.write_text("\n".join(lines) + "\n")
        command = [program, "-c", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                _wait(port, process)
                version = told.stdout.partition("\n")[0]
                yield Mosquitto(port, version, psutil.Process(process.pid))
            finally:
                process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                output = process.communicate()[0].decode(errors="replace").strip()
                raise SystemExit(f"mosquitto does not start: {output}") from None
            time.sleep(0.02)
