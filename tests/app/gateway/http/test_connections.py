"""Connections that are too many, or speak HTTP as nobody should: others are served all the same."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.gateway.http import connection, gateway
from app.gateway.http.access import Access
from app.gateway.http.connection import Connections
from app.gateway.tally import Tally
from tests.support.clock import VirtualClock
from tests.support.http_serving import TIMEOUT, HttpServing, http_serving

PATH = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
KEY = "X-API-Key: sesame\r\n"


@contextmanager
def small(**settings: Any) -> Iterator[HttpServing]:
    """A gateway with room for 16 connections, the last of which is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway, "MOST_CONNECTIONS", 16)
        with http_serving(max_requests=8, **settings) as serving:
            yield serving


def connect(serving: HttpServing) -> socket.socket:
    host, port = serving.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


def head(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode()


def answer(line: socket.socket) -> tuple[int, bytes]:
    """Status and body of an answer on a connection that may be kept."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        piece = line.recv(1)
        assert piece, found
        found += piece
    header, body = found, b""
    lengths = [one for one in header.lower().split(b"\r\n") if one.startswith(b"content-length")]
    size = int(lengths[0].split(b":")[1])
    while len(body) < size:
        piece = line.recv(size - len(body))
        assert piece, body
        body += piece
    return int(header[9:12]), body


def has_busy(serving: HttpServing, count: int) -> bool:
    """Whether there are so many connections, all of them busy."""
    connections = serving.gateway._connections
    return len(connections) == count and not any(connections._idle)


def is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_idle_connections_of_strangers_keep_nobody_out() -> None:
    with small() as serving, ExitStack() as stack:
        lines = [stack.enter_context(connect(serving)) for _ in range(60)]
        assert serving.http.get("/health").status_code == 200
        assert is_closed(lines[0])
        assert 1 < serving.look().connections <= 16
        lines[-1].sendall(head("/version"))
        assert answer(lines[-1])[0] == 200, "the last one that came is not the next to go"


def test_a_key_keeps_its_idle_connection_while_strangers_come() -> None:
    with small(api_key="sesame") as serving, ExitStack() as stack:
        known, stranger = (stack.enter_context(connect(serving)) for _ in range(2))
        known.sendall(head("/v1/models", KEY.strip()))
        assert answer(known)[0] == 200
        stranger.sendall(head("/v1/models", "X-API-Key: wrong"))
        assert answer(stranger)[0] == 401
        for _ in range(60):
            stack.enter_context(connect(serving))
        assert is_closed(stranger)
        known.sendall(head("/v1/models", KEY.strip()))
        assert answer(known)[0] == 200


def test_idle_connections_with_a_key_go_where_there_are_no_others() -> None:
    with small(api_key="sesame") as serving, ExitStack() as stack:
        lines = []
        for _ in range(30):
            lines.append(stack.enter_context(connect(serving)))
            lines[-1].sendall(head("/v1/models", KEY.strip()))
            assert answer(lines[-1])[0] == 200
        assert is_closed(lines[0])


def test_where_all_are_busy_the_last_ones_are_for_keys_and_for_health() -> None:
    with small(api_key="sesame", keys={"b": {"key": "b"}}) as serving, ExitStack() as stack:
        # Their heads are whole, and their bodies never come.
        for _ in range(15):
            line = stack.enter_context(connect(serving))
            line.sendall(head(PATH, KEY.strip(), "Content-Length: 9", method="POST"))
        serving.until(lambda: has_busy(serving, 15))
        for path, lines, status in (
            ("/v1/models", (), 503),
            ("/health", (), 200),
            ("/v1/models", (KEY.strip(),), 200),
        ):
            with connect(serving) as one:
                one.sendall(head(path, *lines))
                code, body = answer(one)
                assert code == status
                if status == 503:
                    assert json.loads(body)["error"]["code"] == "too_many_connections"
                    assert is_closed(one)
            serving.until(lambda: len(serving.gateway._connections) == 15)
        # With all of them busy none is accepted, and one that ends makes room.
        line = stack.enter_context(connect(serving))
        line.sendall(head(PATH, KEY.strip(), "Content-Length: 9", method="POST"))
        serving.until(lambda: has_busy(serving, 16))
        with connect(serving) as one:
            assert is_closed(one)
        line.close()
        serving.until(lambda: len(serving.gateway._connections) == 15)
        assert serving.http.get("/health").status_code == 200


def test_without_descriptors_idle_ones_go_and_the_log_has_a_line_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio's own server wrote 180,000 lines in half a minute."""
    monkeypatch.setattr(connection, "ACCEPT_SECONDS", 0.0)
    with small() as serving, ExitStack() as stack:
        loop = serving.gateway._thread.loop
        idle = stack.enter_context(connect(serving))
        serving.until(lambda: serving.gateway.view().connections == 1)
        accept, fails = loop.sock_accept, [True, True]

        async def sock_accept(listening: socket.socket) -> Any:
            # The loop waits in the one before for the next connection.
            accepted = await accept(listening)
            if fails:
                fails.pop()
                accepted[0].close()
                raise OSError(errno.EMFILE, "Too many open files")
            return accepted

        monkeypatch.setattr(loop, "sock_accept", sock_accept)
        for _ in range(4):
            stack.enter_context(connect(serving))
        assert is_closed(idle)
        assert serving.http.get("/health").status_code == 200
        assert caplog.messages.count("no connection can be accepted: Too many open files") <= 1


def test_the_soft_limit_is_raised_as_far_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 3000:
            raise ValueError("not allowed")  # as macOS has it
        limits[:] = wanted

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert (gateway.raise_limit(512), limits) == (512, [1024, 4096])
    assert (gateway.raise_limit(2000), limits) == (2000, [2000, 4096])
    assert (gateway.raise_limit(9000), limits) == (2000, [2000, 4096])


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.3, HTTP/2.0"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_wish_for_another_protocol_is_not_granted_and_the_body_is_read(
    serving: HttpServing, protocol: str, is_chunked: bool
) -> None:
    """Java's HttpClient and `curl --http2` begin so; the body was lost."""
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(BODY)}"
    wish = head(
        PATH,
        "Connection: Upgrade, HTTP2-Settings",
        f"Upgrade: {protocol}",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        length,
        method="POST",
    )
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if is_chunked else BODY
    with connect(serving) as line, serving.running():
        for piece in (wish[:50], wish[50:] + body[:20], body[20:]):
            line.sendall(piece)
        status, reply = answer(line)
        assert (status, b"You said: hello" in reply) == (200, True)
        line.sendall(wish + body + head("/version", "Connection: upgrade", "Upgrade: h2c"))
        assert answer(line)[0] == 200
        assert answer(line)[0] == 200
        assert serving.engine.submissions[-1].messages[-1].content == "hello"


def test_nothing_is_tunnelled(serving: HttpServing) -> None:
    for target in ("localhost:80", "/health"):
        with connect(serving) as line:
            line.sendall(head(target, method="CONNECT") + b"anything")
            assert answer(line)[0] in (400, 405)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /version HTTP/1.1\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET /version HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\nHost:\r\n\r\n", 200),
        (b"GET /version HTTP/1.0\r\n\r\n", 200),
        (b"GET /version HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nHost: a\r\n\r\n", 400),
        (b"GET /version HTTP/1.1\r\nHost:\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
        (b"GET /version HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    ],
)
def test_a_request_states_its_host_once(serving: HttpServing, sent: bytes, status: int) -> None:
    with connect(serving) as line:
        line.sendall(sent)
        code, body = answer(line)
        assert code == status
        if b"Host" in sent and status == 400:
            assert "Host is stated 2 times" in json.loads(body)["error"]["message"]


def test_a_handshake_that_does_not_come_counts_and_gives_way(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    with small(cert_file=str(pem)) as serving, ExitStack() as stack:
        host, port = serving.url.removeprefix("https://").split(":")
        address = (host, int(port))
        lines = [stack.enter_context(socket.create_connection(address, TIMEOUT)) for _ in range(40)]
        trusting = ssl.create_default_context(cafile=str(pem))
        with (
            socket.create_connection(address, TIMEOUT) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            line.sendall(head("/health"))
            assert answer(line)[0] == 200
        assert is_closed(lines[0])
        assert 1 < serving.look().connections <= 16


def certificate(folder: Path) -> Path:
    """A certificate of `localhost` and its key, in a file."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed")
    pem = folder / "box.pem"
    made = f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {pem} -out {pem}"
    subprocess.run([openssl, *made.split()], check=True, capture_output=True)
    return pem


def test_who_guesses_keys_or_speaks_no_http_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with http_serving(api_key="sesame") as serving:
        for number in range(5):
            headers = {"x-api-key": f"guess {number}"}
            assert serving.http.get("/v1/models", headers=headers).status_code == 401
        for _ in range(5):
            with connect(serving) as line:
                line.sendall(b"\x16\x03\x01\r\n\r\n")
                assert answer(line)[0] == 400
        serving.until(lambda: sum(one.count for one in serving.gateway.view().rejected) == 10)
        rejected = {(one.code, one.reason): one.count for one in serving.gateway.view().rejected}
    assert rejected == {(401, "unknown key"): 5, (400, "no HTTP"): 5}
    assert [one for one in caplog.messages if "guess" not in one] == [
        "127.0.0.1 is refused: the API key is not known here"
    ]


async def test_requests_take_turns_and_what_was_broken_off_costs_none() -> None:
    connections = Connections(Access({}), Tally(VirtualClock()), 16)
    started: list[str] = []

    def request(who: str, is_wanted: bool = True) -> None:
        def start() -> bool:
            if is_wanted:
                started.append(who)
            return is_wanted

        connections.enqueue(who, start)

    for _ in range(3):
        request("a")
    for _ in range(1000):
        request("b", is_wanted=False)
    request("b")
    request("c")
    await asyncio.sleep(0.0)
    assert started == ["a"], "one in a turn of the loop"
    request("d")
    for _ in range(10):
        await asyncio.sleep(0.0)
    assert started == ["a", "b", "c", "a", "d", "a"]
    request("a")
    await asyncio.sleep(0.0)
    assert started[-1] == "a"
