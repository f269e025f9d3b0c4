"""Server: `tui serve` with keys, over HTTP and MQTT, and few descriptors."""

from __future__ import annotations

import http.client
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support.brokers import free_port
from tests.support.serving_process import is_busy, sums

# Who asks for much has no room for anything else; the second one does what is small and wrong.
ABUSER, MEDDLER, NEIGHBOUR = "abuser", "meddler", "neighbour"
# As many as a shell or a service has where nobody has raised it.
DESCRIPTORS = 1024
STORED_BYTES = 32 << 20
# Against a hang alone: a shared machine may stop everything for minutes.
TIMEOUT = 600.0
_PROGRAM = "from app.commands.cli import main; main()"
_CONFIG = """
[http]
listen = "127.0.0.1:{port}"
metrics_open = true
[http.keys.{abuser}]
key = "{abuser}"
[http.keys.{meddler}]
key = "{meddler}"
stored_bytes = {stored_bytes}
[http.keys.{neighbour}]
key = "{neighbour}"
[mqtt]
url = "{broker}"
node = "box"
"""


@dataclass(frozen=True)
class Held:
    """Memory, descriptors and processes of a server.

    Attributes:
        memory: resident bytes of the server and of its worker processes.
        own_memory: those of the server alone.
        descriptors: of the server.
        processes: the server and its worker processes.
    """

    memory: int
    own_memory: int
    descriptors: int
    processes: int

    def __str__(self) -> str:
        own, memory = self.own_memory >> 20, self.memory >> 20
        return (
            f"{own} MiB, {memory} MiB with workers, {self.descriptors} descriptors,"
            f" {self.processes} processes"
        )


class Server:
    """A context that starts the process, and kills it if it is still there.

    Args:
        folder: for all that it writes.
        broker: URL.
    """

    def __init__(self, folder: Path, broker: str) -> None:
        self.port = free_port()
        self.errors = folder / "errors"
        self._folder = folder
        self._config = folder / "config.toml"
        config = _CONFIG.format(
            port=self.port,
            broker=broker,
            abuser=ABUSER,
            meddler=MEDDLER,
            neighbour=NEIGHBOUR,
            stored_bytes=STORED_BYTES,
        )
        self._config.write_text(config)

    def __enter__(self) -> Self:
        folders = {f"XDG_{name}_HOME": str(self._folder) for name in ("CONFIG", "DATA", "STATE")}
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "serve", "--config", str(self._config)],
                stderr=errors,
                env={**os.environ, **folders},
                preexec_fn=_have_few_descriptors,
            )
        self._watched = psutil.Process(self.process.pid)
        try:
            self.until(lambda: "pool default, node box" in self.errors.read_text())
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert self.process.poll() is None, self.errors.read_text()[-5000:]
            assert time.monotonic() < deadline, f"not in {TIMEOUT} s: {self.metrics()}"
            time.sleep(0.2)

    def metrics(self) -> dict[str, float]:
        """The figures of `/metrics`, as `sums` reads them."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)) as line:
            line.request("GET", "/metrics")
            return sums(line.getresponse().read().decode())

    def _is_idle(self) -> bool:
        now = self.metrics()
        # One connection may be ours: they are counted now and then.
        return not is_busy(now) and now["batchdeck:http_connections"] <= 1

    def at_rest(self) -> Held:
        """Held once nothing runs, waits or is connected."""
        self.until(self._is_idle)
        own = self._watched.memory_info().rss
        workers = self._watched.children(recursive=True)
        return Held(
            memory=own + sum(one.memory_info().rss for one in workers),
            own_memory=own,
            descriptors=self._watched.num_fds(),
            processes=1 + len(workers),
        )

    def log(self) -> str:
        """All of the log that is kept, the oldest first."""
        files = sorted((self._folder / "batchdeck" / "log").glob("batchdeck.log*"), reverse=True)
        return "".join(file.read_text(errors="replace") for file in files)


def _have_few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
