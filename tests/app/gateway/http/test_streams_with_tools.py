"""Streams of requests that state tools, on the wire of each interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.gateway.http import generation
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

CALLS = 'Let me see. <tool_call>weather {"place": "Oslo"}</tool_call>'
ASKING = [{"role": "user", "content": "the weather?"}]
FUNCTION = {"name": "weather", "parameters": {"type": "object"}}
Payload = dict[str, Any]


@pytest.fixture(scope="module")
def calling() -> Iterator[HttpServing]:
    with http_serving(ScriptedEngine({"the weather?": CALLS})) as one:
        yield one
        one.check_idle()


def chat_text(payload: Payload) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in payload["choices"])


def message_text(payload: Payload) -> str:
    return str(payload.get("delta", {}).get("text", ""))


def response_text(payload: Payload) -> str:
    return str(payload["delta"]) if payload["type"] == "response.output_text.delta" else ""


@pytest.mark.parametrize(
    ("path", "body", "text_of", "call"),
    [
        (
            "/v1/chat/completions",
            {"messages": ASKING, "tools": [{"type": "function", "function": FUNCTION}]},
            chat_text,
            '"tool_calls":[',
        ),
        (
            "/v1/messages",
            {
                "messages": ASKING,
                "max_tokens": 50,
                "tools": [{"name": "weather", "input_schema": {}}],
            },
            message_text,
            '"type":"tool_use"',
        ),
        (
            "/v1/responses",
            {"input": "the weather?", "tools": [{"type": "function", **FUNCTION}]},
            response_text,
            '"type":"function_call"',
        ),
    ],
)
def test_text_is_told_as_it_is_written_up_to_the_call(
    calling: HttpServing,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: Payload,
    text_of: Callable[[Payload], str],
    call: str,
) -> None:
    monkeypatch.setattr(generation, "PATIENCE_SECONDS", 0.0)
    with calling.http.stream("POST", path, json={**body, "stream": True}) as answer:
        lines = answer.iter_lines()

        def next_text() -> str:
            for line in lines:
                if line.startswith("data: {") and (text := text_of(json.loads(line[6:]))):
                    return text
            return ""

        pieces = []
        for _ in range(3):
            assert calling.engine.advance() == 1
            pieces.append(next_text())
        assert pieces == ["Let", " me", " see."]
        calling.engine.finish_all()
        rest = "\n".join(lines)
    assert call in rest
    assert "tool_call>" not in rest
