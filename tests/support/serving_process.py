"""ServingProcess: `tui serve --http` as a process of its own, to be starved, left and killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers import free_port

# Against a hang alone: with a starved machine, or where tests are stopped for a while, 10 s passed.
TIMEOUT = 60.0
_SCRIPTED = """
import sys, threading
from contextlib import contextmanager
from app.commands import serve
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from tests.support.scripted_engine import ScriptedEngine

CONFIG = EngineConfig(
    num_blocks=256, max_model_len=1024, max_num_seqs=1, max_num_batched_tokens=64
)

def reply(submission):
    call = '<tool_call>weather {"place": "' + "Oslo " * 100 + '"}</tool_call>'
    return call if "tools" in submission.sampling else "word " * 100

@contextmanager
def loading(request):
    knobs = Knobs(max_num_seqs=1, max_num_batched_tokens=64)
    engine = ScriptedEngine(reply, config=CONFIG, knobs=knobs)
    def drive():
        for line in sys.stdin:
            engine.advance(int(line))
    threading.Thread(target=drive, daemon=True).start()
    yield engine

serve.loading = loading
"""
_PROGRAM = """
from app.commands.cli import main
from app.gateway.http import body, connection, gateway

body.BODY_SECONDS = connection.HEAD_SECONDS = {patience}
gateway.POLL_SECONDS = gateway.VIEW_SECONDS = 0.02
main()
"""


class ServingProcess:
    """A context that starts it, and kills it.

    Args:
        folder: for all that it writes.
        scripted: whether one sequence at a time gets scripted tokens, a step when it is told to,
            64 tokens of a prompt in each. Else the built-in model runs as ever.
        port: to listen on; else a free one.
        patience: how many seconds a head and a body have to come.

    Attributes:
        http: a client that knows where it is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        scripted: bool = True,
        port: int | None = None,
        patience: float = TIMEOUT,
    ) -> None:
        self.port = port or free_port()
        self._folder = folder
        self._program = (_SCRIPTED if scripted else "") + _PROGRAM.format(patience=patience)

    def __enter__(self) -> Self:
        folders = {f"XDG_{name}_HOME": str(self._folder) for name in ("CONFIG", "DATA", "STATE")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._program, "serve", "--http", str(self.port)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **folders},
        )
        self._watched = psutil.Process(self._process.pid)
        self.http = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=TIMEOUT, trust_env=False
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if f":{self.port}" in line:
                return self
        raise AssertionError(f"it has ended with {self._process.wait()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()
        self.kill()
        self._process.communicate()

    def kill(self) -> None:
        """As the kernel ends a process for which there is no memory."""
        self._process.kill()
        self._process.wait()

    def step(self, steps: int = 1) -> None:
        """Have a scripted engine take steps, soon."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")

    @contextmanager
    def running(self) -> Iterator[None]:
        """A scripted engine steps by itself."""
        parked = threading.Event()

        def drive() -> None:
            while not parked.wait(0.002):
                self.step()

        driver = threading.Thread(target=drive, daemon=True)
        driver.start()
        try:
            yield
        finally:
            parked.set()
            driver.join()

    def until(self, condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not in {timeout} s: {self.metrics()}"
            time.sleep(0.005)

    def metrics(self) -> dict[str, float]:
        """The figures of `/metrics`, as `sums` reads them."""
        return sums(self.http.get("/metrics").text)

    def is_idle(self) -> bool:
        """Whether nothing runs, waits or holds a block, and nobody but we is connected."""
        now = self.metrics()
        return not is_busy(now) and now["batchdeck:http_connections"] == 1

    def memory(self) -> int:
        """Bytes that are resident."""
        return int(self._watched.memory_info().rss)

    def open_files(self) -> int:
        """File descriptors, sockets among them."""
        return int(self._watched.num_fds())

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT) as line:
            yield line


def sums(text: str) -> dict[str, float]:
    """Figures in the text of `/metrics`, by name; the sum of those with several labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def is_busy(figures: Mapping[str, float]) -> bool:
    """Whether a request runs or waits, or a block is held."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return any(figures[f"vllm:{name}"] for name in names) or bool(
        figures["batchdeck:http_requests_running"]
    )


def request(path: str = "/v1/chat/completions", **fields: Any) -> bytes:
    """A request of a chat, as it goes over the line."""
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode()
    return head(len(body), path) + body


def head(size: int, path: str = "/v1/chat/completions") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
