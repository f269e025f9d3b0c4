"""Asking a host whose models are scripted, and reading what it says."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.api.client import ChatMessage, Submission
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import Snapshot
from engine.api.stream import Finish, RequestStream
from engine.serving.host import EngineHost
from tests.support.scripted_loader import TIMEOUT
from tests.support.scripted_runner import reference


def read(stream: RequestStream) -> tuple[str, Finish]:
    """The whole reply. A stream that does not end fails the test."""
    text = ""
    deadline = time.monotonic() + TIMEOUT
    while stream.wait(max(0.0, deadline - time.monotonic())):
        delta = stream.drain()
        assert delta is not None
        text += delta.text
        if delta.finish is not None:
            assert stream.drain() is None, "news after the end"
            return text, delta.finish
    raise AssertionError(f"{stream.request_id} did not end")


def error_of(stream: RequestStream) -> ErrorInfo:
    finish = read(stream)[1]
    assert finish.reason is FinishReason.ERROR
    assert finish.error is not None
    return finish.error


def say(model: str, prompt: list[int], count: int) -> str:
    return "".join(f"{model}{token} " for token in reference(prompt, count))


def ask(
    host: EngineHost,
    prompt: str = "1 2 3",
    name: str | None = None,
    wake: Callable[[], None] | None = None,
    **options: object,
) -> RequestStream:
    """Submit a chat of one message; sampling parameters by name."""
    routed = {k: options.pop(k) for k in ("priority", "deadline") if k in options}
    fields: dict[str, object] = {"messages": (ChatMessage("user", prompt),), "sampling": options}
    if name is not None:
        fields["request_id"] = name
    return host.submit(Submission(**(fields | routed)), wake)  # type: ignore[arg-type]


def snapshot_when(host: EngineHost, ready: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that is so. One that does not come fails the test."""
    deadline = time.monotonic() + TIMEOUT
    while (snapshot := host.snapshot()) is None or not ready(snapshot):
        assert time.monotonic() < deadline
    return snapshot
