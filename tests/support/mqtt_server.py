"""A server in a process of its own, to be killed: the gateway over a scripted engine.

`python -m tests.support.mqtt_server --port PORT --data FOLDER --step SECONDS --node NODE` says its
boot id once it is online, and steps until it is killed. `Server` starts and kills it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.gateway.mqtt.delivery import Delivery
from app.gateway.mqtt.transport.link import Inbound
from app.store.journal import Journal
from tests.support.mqtt_serving import Serving

# Where it may be told to die: just before a request is acknowledged, its ending is told, or it is
# written that it was.
MOMENTS: dict[str, tuple[type, str]] = {
    "journalled": (Inbound, "ack"),
    "ended": (Delivery, "publish"),
    "told": (Journal, "mark_delivered"),
}
START_SECONDS = 20.0


class Server:
    """The process.

    Args:
        port: of a broker, or of a proxy before it, on the loopback.
        folder: for its store.
        die: one of `MOMENTS`, at the first of which it is killed.
        step_seconds: between two steps; a token of each running request comes in each.
        node: its name in the pool.

    Attributes:
        boot_id: empty if it died before it had one to say.
    """

    def __init__(
        self,
        port: int,
        folder: Path,
        *,
        die: str | None = None,
        step_seconds: float = 0.002,
        node: str = "box",
    ) -> None:
        command = [sys.executable, "-m", "tests.support.mqtt_server"]
        command += ["--port", str(port), "--data", str(folder), "--step", str(step_seconds)]
        command += ["--node", node]
        if die is not None:
            command += ["--die", die]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        watchdog = threading.Timer(START_SECONDS, self._process.kill)
        watchdog.start()
        try:
            assert self._process.stdout is not None
            self.boot_id = self._process.stdout.readline().strip()
        finally:
            watchdog.cancel()
        assert self.boot_id or die, "the server did not come online"

    def kill(self) -> None:
        """As a crash does it: nothing is said."""
        self._process.kill()
        self.wait()

    def wait(self) -> None:
        """Until it has died."""
        self._process.wait(START_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def server(port: int, folder: Path, **kwargs: Any) -> Iterator[Server]:
    one = Server(port, folder, **kwargs)
    try:
        yield one
    finally:
        one.kill()


def _die_before(owner: type, name: str) -> None:
    """Have the process killed where a method is about to run."""
    method = getattr(owner, name)

    def die(self: object, *args: object) -> object:
        if isinstance(self, Inbound) and "/req/" not in self.topic:
            return method(self, *args)  # a node's card
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, die)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--die", choices=MOMENTS)
    parser.add_argument("--step", type=float, required=True)
    parser.add_argument("--node", required=True)
    options = parser.parse_args()
    if options.die:
        _die_before(*MOMENTS[options.die])
    serving = Serving(options.port, options.data, keepalive=2, node=options.node)
    serving.online()
    print(serving.boot_id, flush=True)
    while True:
        serving.engine.advance()
        time.sleep(options.step)


if __name__ == "__main__":
    _main()
