"""After each fault a request has one ending, and nothing is left of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from app.gateway.http import body, connection
from engine.api.client import LoadRequest
from tests.support.http_serving import TIMEOUT, HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

PATH = "/v1/chat/completions"


def payload(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"messages": messages, **fields}).encode()


@contextmanager
def connected(serving: HttpServing) -> Iterator[socket.socket]:
    host, port = serving.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), TIMEOUT) as line:
        yield line


def head(size: int) -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()


def everything(line: socket.socket) -> bytes:
    found = b""
    while piece := line.recv(65536):
        found += piece
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_request(serving: HttpServing, stream: bool) -> None:
    told = payload(stream=stream)
    with connected(serving) as line:
        line.sendall(head(len(told)) + told)
        serving.until(lambda: serving.engine.submissions)
        serving.engine.advance()
    serving.check_idle()
    view = serving.gateway.view
    serving.until(lambda: view().finished == view().accepted > 0)


def test_a_client_that_goes_away_within_its_body_has_asked_nothing(serving: HttpServing) -> None:
    with connected(serving) as line:
        line.sendall(head(1000) + b'{"messages"')
        serving.until(lambda: serving.gateway.view().connections)
    serving.until(lambda: not serving.gateway.view().connections)
    assert serving.engine.submissions == []


@pytest.mark.parametrize("is_stated", [False, True])
def test_a_large_body_is_refused_unread(is_stated: bool) -> None:
    with http_serving(max_request_bytes=2000) as serving, connected(serving) as line:
        if is_stated:
            line.sendall(head(100_000_000))
        else:
            line.sendall(
                f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            )
            line.sendall(b"bb8\r\n" + b"x" * 3000 + b"\r\n")
        answer = everything(line)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"at most 2000 are allowed" in answer


def test_a_body_that_does_not_come_is_given_up(
    serving: HttpServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.05)
    with connected(serving) as line:
        line.sendall(head(1000) + b"{")
        assert everything(line).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat"])
def test_a_head_that_does_not_come_is_given_up(
    serving: HttpServing, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    with connected(serving) as line:
        line.sendall(begun)
        assert everything(line) == b""


CHUNKED = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def send_until_refused(line: socket.socket, begun: bytes, piece: bytes) -> int:
    """How many bytes could be sent before the connection was closed."""
    sent = 0
    with suppress(ConnectionError):
        line.sendall(begun)
        while sent < 50_000_000:
            line.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"GET /health HTTP/1.1\r\n", b"X-A: " + b"a" * 60_000 + b"\r\n"),
        (b"GET /health HTTP/1.1\r\nX-A: ", b"a" * 60_000),
        (b"GET /", b"a" * 60_000),
    ],
    ids=["headers", "header", "path"],
)
def test_a_head_without_end_is_refused(serving: HttpServing, begun: bytes, piece: bytes) -> None:
    """It would be kept until its end."""
    with connected(serving) as line:
        assert send_until_refused(line, begun, piece) < 20_000_000
        with suppress(ConnectionError):
            assert everything(line).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (CHUNKED + b"0\r\n", b"X-A: " + b"a" * 60_000 + b"\r\n"),
        (CHUNKED + b"5;", b"a" * 60_000),
        (b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 1000),
    ],
    ids=["trailers", "extension of a chunk", "pipelined requests"],
)
def test_what_is_kept_beside_a_body_has_a_bound(
    serving: HttpServing, begun: bytes, piece: bytes
) -> None:
    with connected(serving) as line:
        assert send_until_refused(line, begun, piece) < 20_000_000


def test_pipelined_requests_are_answered_in_their_order(serving: HttpServing) -> None:
    asked = (b"health", b"v2", b"version")
    with connected(serving) as line:
        line.sendall(b"".join(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in asked))
        found = b""
        while found.count(b"HTTP/1.1 ") < 3 or not found.endswith(b"}"):
            piece = line.recv(65536)
            assert piece
            found += piece
    assert [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_operator_may_stop_it(serving: HttpServing, stream: bool) -> None:
    answers: list[Any] = []

    def ask() -> None:
        answers.append(serving.http.post(PATH, content=payload(stream=stream)))

    asking = threading.Thread(target=ask)
    asking.start()
    serving.until(lambda: serving.engine.submissions)
    serving.engine.advance()
    serving.engine.abort(serving.engine.submissions[-1].request_id)
    asking.join(TIMEOUT)
    (answer,) = answers
    if stream and answer.status_code == 200:  # if anything of it was told before
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.status_code == 503
    assert "the operator of the server stopped this request" in answer.text


def test_without_a_model_it_is_unavailable() -> None:
    with http_serving(ScriptedEngine(loaded=False)) as serving:
        for stated in ({}, {"model": "scripted"}):
            answer = serving.http.post(PATH, content=payload(**stated))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_model")
        assert serving.http.get("/health").status_code == 503
        assert serving.http.get("/v1/models").json()["data"] == []
        serving.engine.load(LoadRequest("scripted"))
        answer = serving.http.post(PATH, content=payload())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        serving.engine.ready()
        assert serving.ask().status_code == 200


def test_while_the_operator_drains_nothing_new_comes_in() -> None:
    with http_serving() as serving:
        serving.engine.set_knobs({"draining": True}, "me")
        serving.engine.advance()
        serving.until(lambda: serving.http.get("/health").status_code == 503)
        answer = serving.http.post(PATH, content=payload())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


def test_answers_on_a_kept_connection_go_out_at_once(serving: HttpServing) -> None:
    """Head and body are two pieces: without TCP_NODELAY the second waits for the first's
    acknowledgement."""
    with connected(serving) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
        (connection,) = (
            one
            for one in serving.gateway._server.server_state.connections
            if one.transport.get_extra_info("peername") == line.getsockname()
        )
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_full_server_says_when_to_ask_again() -> None:
    with http_serving(max_requests=1) as serving:
        told = payload()
        with connected(serving) as line:
            line.sendall(head(len(told)) + told)
            serving.until(lambda: serving.engine.submissions)
            answer = serving.http.post(PATH, content=told)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "server_full")
            assert "retry-after" in answer.headers
        serving.check_idle()


def test_its_end_is_told_to_those_who_run() -> None:
    with http_serving() as serving:
        told = payload(stream=True)
        with connected(serving) as line:
            line.sendall(head(len(told)) + told)
            serving.until(lambda: serving.engine.submissions)
            serving.engine.advance()
            serving.gateway.request_stop(0.0)
            found = b""
            while b"the server is shutting down" not in found:
                piece = line.recv(65536)
                assert piece
                found += piece
        serving.gateway.stop()
        assert serving.gateway.failure == ""


def test_what_runs_may_end_while_it_drains() -> None:
    with http_serving() as serving:
        told = payload()
        with connected(serving) as line:
            line.sendall(head(len(told)) + told)
            serving.until(lambda: serving.engine.submissions)
            serving.gateway.request_stop(TIMEOUT)
            with serving.running():
                assert b"You said: hello" in everything(line)
        serving.gateway.stop()


def test_a_path_that_is_none_is_told_as_an_error(serving: HttpServing) -> None:
    for method, path, status in (("GET", "/v2", 404), ("GET", PATH, 405)):
        answer = serving.http.request(method, path)
        assert answer.status_code == status
        assert "is not served here" in answer.json()["error"]["message"]


def test_it_says_what_it_is(serving: HttpServing) -> None:
    (model,) = serving.http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("scripted", "model")
    assert model["has_chat_template"]
    assert serving.http.get("/v1/models/scripted").json() == model
    answer = serving.http.get("/v1/models/gpt-4o")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
    assert serving.http.get("/version").json()["version"]


ASKING: dict[str, dict[str, Any]] = {
    PATH: {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
    "/tokenize": {"prompt": "hello"},
    "/health": {},
}


def test_why_no_model_could_be_loaded_is_told_to_no_client() -> None:
    """It names files; `/health` needs no key."""
    with http_serving(api_key="a", keys={"ann": {"key": "b"}}) as serving:
        known = {"x-api-key": "b"}
        late: list[str] = []

        def ask() -> None:
            late.append(serving.http.post(PATH, json=ASKING[PATH], headers=known).text)

        waits = threading.Thread(target=ask)
        waits.start()
        serving.until(lambda: serving.engine.submissions)
        serving.engine.load(LoadRequest("/srv/models/x.gguf"))
        serving.engine.fail("could not load /srv/models/x.gguf: it is damaged")
        waits.join()
        for path, fields in ASKING.items():
            send = {"json": fields} if fields else {}
            answer = serving.http.request("POST" if fields else "GET", path, headers=known, **send)
            assert answer.status_code in (503, 529)
            late.append(answer.text)
        with serving.http.stream("GET", "/live", headers=known) as live:
            late.append(next(text for text in live.iter_lines() if '"status"' in text))
        assert [text for text in late if "/srv" in text or "damaged" in text] == []
        assert all("the server's log says why" in text for text in late)
