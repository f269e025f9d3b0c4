"""How requests come and answers go: HTTP/1.0, and marks before the first character."""

from __future__ import annotations

import io
import json
import socket
from typing import Any

import pytest

from app.gateway.http.protocol.batches import custom_id_of
from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.stdio import StdioGateway
from tests.support.chat_requests import CALLER
from tests.support.http_serving import HttpServing
from tests.support.scripted_engine import ScriptedEngine

MARK = "\ufeff"


def exchange(
    serving: HttpServing, path: str, body: dict[str, Any], *head: str
) -> tuple[str, bytes]:
    """The head and the body of an answer, read to the end of the connection."""
    sent = json.dumps(body).encode()
    lines = [f"POST {path} {head[0]}", *head[1:], f"Content-Length: {len(sent)}", "", ""]
    host, port = serving.url.removeprefix("http://").split(":")
    with serving.running(), socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall("\r\n".join(lines).encode() + sent)
        got = b"".join(iter(lambda: line.recv(1 << 16), b""))
    first, _, rest = got.partition(b"\r\n\r\n")
    return first.decode().lower(), rest


@pytest.mark.parametrize("more", [(), ("Connection: keep-alive",), ("Connection: close",)])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_http_1_0_gets_no_chunks(
    serving: HttpServing, path: str, asked: dict[str, Any], more: tuple[str, ...]
) -> None:
    head, body = exchange(serving, path, asked | {"stream": True}, "HTTP/1.0", *more)
    assert head.startswith("http/1.1 200")
    assert "transfer-encoding" not in head
    assert "connection: close" in head
    assert body.startswith((b"data: {", b"event: ")), body[:40]
    assert body.endswith(b"\n\n")


def test_http_1_1_gets_chunks(serving: HttpServing) -> None:
    asked = {"prompt": "hello", "stream": True}
    head, body = exchange(
        serving, "/v1/completions", asked, "HTTP/1.1", "Host: x", "Connection: close"
    )
    assert "transfer-encoding: chunked" in head
    assert body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_mark_before_json_is_no_part_of_it(serving: HttpServing, path: str) -> None:
    """PowerShell and others write one."""
    body = {"messages": [{"role": "user", "content": "hello"}], "prompt": "hello"}
    with serving.running():
        answer = serving.http.post(path, content=f"{MARK}{json.dumps(body)}".encode())
    assert answer.status_code == 200, answer.text


def test_of_mqtt_too() -> None:
    payload = f'{MARK}{{"messages": [{{"role": "user", "content": "hi"}}]}}'.encode()
    assert parse_request(payload, CALLER).messages[0].content == "hi"


def test_of_a_line_of_a_batch_too() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    assert custom_id_of(f"{MARK}{json.dumps(asked)}".encode()) == "a"


@pytest.mark.parametrize("is_each", [False, True])
def test_a_mark_before_the_first_line_is_no_part_of_it(is_each: bool) -> None:
    engine, out = ScriptedEngine(drives_itself=True), io.BytesIO()
    source = io.BytesIO(f"{MARK}hello\n{MARK}again\n".encode())
    gateway = StdioGateway(engine, source, out, lambda _: None)
    assert gateway.converse_each(4) if is_each else gateway.converse()
    said = [one.messages[-1].content for one in engine.submissions]
    assert said == ["hello", f"{MARK}again"]
