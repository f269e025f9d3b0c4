"""`tui serve --http` as a process, and clients that do it harm: what they hold comes back, and
others are served meanwhile.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving_process import ServingProcess, head, request

MIB = 1 << 20
LONG = [{"role": "user", "content": "hello " * 300}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    with ServingProcess(tmp_path_factory.mktemp("serving"), patience=1.0) as one:
        one.until(one.is_idle)
        # The store's thread opens its files after the server listens, and answers when it has: else
        # the first test would find more of them open than before it.
        assert one.http.get("/v1/batches").status_code == 200
        yield one


@pytest.fixture
def server(shared: ServingProcess) -> Iterator[ServingProcess]:
    """It is idle before and after, with as many files open."""
    before = shared.open_files()
    yield shared
    with shared.running():
        shared.until(shared.is_idle)
    shared.until(lambda: shared.open_files() <= before)


def everything(line: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while piece := line.recv(65536):
            found += piece
    return found


def until_running(server: ServingProcess) -> None:
    server.until(lambda: server.metrics()["vllm:num_requests_running"] == 1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("steps", "fields", "waits"),
    [
        (0, {}, True),
        (1, {"messages": LONG}, False),
        (20, {}, False),
        (20, {"tools": TOOLS}, False),
    ],
    ids=["queued", "prefill", "decode", "tool call"],
)
def test_who_goes_ends_what_was_asked_once(
    server: ServingProcess, steps: int, fields: dict[str, Any], waits: bool, stream: bool
) -> None:
    before = server.metrics()
    with server.connected() as holding, server.connected() as line:
        if waits:
            holding.sendall(request())
            server.until(lambda: server.metrics()["vllm:num_requests_waiting"] == 1)
            server.step()
            until_running(server)
        line.sendall(request(stream=stream, **fields))
        server.until(lambda: server.metrics()["vllm:num_requests_waiting"] == 1)
        if not waits:
            server.step(steps)
            until_running(server)
        if stream and steps > 1 and not fields:
            assert b"word " in line.recv(65536)
        now = server.metrics()
        assert now["vllm:kv_cache_usage_perc"] > 0
        name = "vllm:generation_tokens_total"
        assert (now[name] > before[name]) is (waits or steps > 1)
        line.close()
        if waits:
            server.until(lambda: server.metrics()["vllm:num_requests_waiting"] == 0)
            assert server.metrics()["vllm:num_requests_running"] == 1
    with server.running():
        server.until(server.is_idle)
    after = server.metrics()
    for what in ("accepted", "finished"):
        name = f"batchdeck:http_requests_{what}_total"
        assert after[name] == before[name] + 1 + waits


def test_who_is_slow_is_ended_and_keeps_nobody_waiting(server: ServingProcess) -> None:
    """Hundreds of heads and bodies that come byte by byte."""
    files = server.open_files()
    with ExitStack() as stack, selectors.DefaultSelector() as lines:
        for number in range(300):
            line = stack.enter_context(server.connected())
            line.sendall(head(1000) if number % 2 else b"POST /v1/chat/completions HTTP/1.1\r\nX-")
            lines.register(line, selectors.EVENT_READ, number)
        server.until(lambda: server.open_files() >= files + 300)
        with server.running():
            fields = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
            assert server.http.post("/v1/chat/completions", json=fields).status_code == 200
        assert server.open_files() >= files + 300, "they were ended before the other was answered"
        ends: dict[int, bytes] = {}
        while len(ends) < 300:
            for key, _ in lines.select(0.05):
                assert isinstance(key.fileobj, socket.socket)
                ends[key.data] = everything(key.fileobj)
                lines.unregister(key.fileobj)
            for key in tuple(lines.get_map().values()):
                with suppress(ConnectionError):
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.sendall(b"a")
    assert {answer[:13] for number, answer in ends.items() if number % 2} == {b"HTTP/1.1 408 "}
    assert {answer for number, answer in ends.items() if not number % 2} == {b""}


def test_bodies_that_are_broken_off_leave_nothing(server: ServingProcess) -> None:
    before = server.metrics()
    for _ in range(50):
        with server.connected() as line:
            line.sendall(request()[:-20])
    server.until(server.is_idle)
    name = "batchdeck:http_requests_accepted_total"
    assert server.metrics()[name] == before[name]


@pytest.mark.parametrize("size", [100 * MIB, None], ids=["stated", "chunked"])
def test_a_body_of_100_mib_is_refused_in_little_memory(
    server: ServingProcess, size: int | None
) -> None:
    piece = b"x" * 65536
    before, most = server.memory(), 0
    with server.connected() as line, suppress(ConnectionError):
        if size is None:
            chunked = b"Transfer-Encoding: chunked"
            line.sendall(head(0).replace(b"Content-Length: 0", chunked))
            piece = b"10000\r\n" + piece + b"\r\n"
        else:
            line.sendall(head(size))
        for _ in range(100 * MIB // 65536):
            line.sendall(piece)
            most = max(most, server.memory())
        raise AssertionError("all of it was read")
    # What the sockets of both sides hold is not the server's.
    assert most - before < 16 * MIB


def test_a_killed_server_breaks_its_streams_and_the_next_one_serves(tmp_path: Path) -> None:
    with ServingProcess(tmp_path) as one:
        body = request(stream=True)
        with one.connected() as line:
            line.sendall(body)
            one.until(lambda: one.metrics()["vllm:num_requests_waiting"] == 1)
            one.step(20)
            received = b""
            while received.count(b"word ") < 5:
                piece = line.recv(65536)
                assert piece, received
                received += piece
            one.kill()
            received += everything(line)
        # No last chunk, so that no client takes it for the end.
        assert b"[DONE]" not in received
        assert not received.endswith(b"0\r\n\r\n")
    with ServingProcess(tmp_path, port=one.port) as next_one, next_one.running():
        fields = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
        assert next_one.http.post("/v1/chat/completions", json=fields).status_code == 200
