"""The gateway of docs/examples/, as CONTRIBUTING.md has it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api.lifecycle import FinishReason
from tests.support.examples import example
from tests.support.scripted_engine import ScriptedEngine

gateway = example("socket_gateway")

Serve = Callable[..., bytes]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine({"hi": "Hello you", "one": "1", "poem": "a b\nc d"}, drives_itself=True)


@pytest.fixture
def server(engine: ScriptedEngine, tmp_path: Path) -> Iterator[Any]:
    with gateway.SocketGateway(engine, str(tmp_path / "chat")) as server:
        yield server


@pytest.fixture
def serve(server: Any) -> Serve:
    """A connection that says something, served in this thread; what it was told."""

    def converse(said: bytes, *, stays: bool = True) -> bytes:
        told = b""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(server.server_address)
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            connection, address = server.get_request()
            if stays:
                server.process_request_thread(connection, address)
                while chunk := client.recv(4096):
                    told += chunk
        if not stays:
            server.process_request_thread(connection, address)
        return told

    return converse


def test_a_connection_is_a_chat_of_its_own(engine: ScriptedEngine, serve: Serve) -> None:
    assert serve(b"hi\r\npoem") == b"Hello you\na b\nc d\n"
    assert serve(b"one\n") == b"1\n"
    first, second, third = engine.submissions
    assert [message.content for message in second.messages] == ["hi", "Hello you", "poem"]
    assert second.context is not None
    assert [message.content for message in third.messages] == ["one"]
    assert first.origin == second.origin
    assert first.origin.conversation != third.origin.conversation


def test_a_refused_turn_is_told_of_and_left_out(engine: ScriptedEngine, serve: Serve) -> None:
    told = serve(b"\xff\n" + b"word " * 2000 + b"\none\n").splitlines()
    assert told[0] == b"error: byte 1 of the line is not UTF-8; the line must be UTF-8"
    assert told[1].startswith(b"error: ")
    assert told[2:] == [b"1"]
    assert [message.content for message in engine.submissions[-1].messages] == ["one"]


def test_a_line_that_is_too_long_ends_the_chat(
    engine: ScriptedEngine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MAX_LINE_BYTES", 4)
    assert serve(b"one\npoem\n").splitlines()[-1] == (
        b"error: the line has 4 bytes or more; it must have fewer"
    )
    assert len(engine.submissions) == 0


def test_a_full_queue_is_told(serve: Serve, engine: ScriptedEngine) -> None:
    engine.set_knobs({"queue_limit": 1, "paused": True}, "test")
    engine.submit(gateway.Submission(messages=(gateway.ChatMessage("user", "first"),)))
    assert b"queue_limit" in serve(b"second\n")


def test_nothing_is_computed_for_who_has_gone(engine: ScriptedEngine, serve: Serve) -> None:
    serve(b"poem\none\n", stays=False)
    snapshot = engine.snapshot()
    assert snapshot is not None
    assert [view.finish_reason for view in snapshot.requests] == [FinishReason.ABORT]


def test_the_file_is_gone_at_the_end(engine: ScriptedEngine, tmp_path: Path) -> None:
    path = tmp_path / "chat"
    with gateway.SocketGateway(engine, str(path)):
        assert path.is_socket()
    assert not path.exists()
