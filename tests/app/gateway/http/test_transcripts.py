"""Chats over HTTP, as the screen sees them."""

from __future__ import annotations

from typing import Any

import pytest

from app.gateway.exchange import ENDED_KEPT
from app.gateway.http import generation
from tests.support.http_serving import HttpServing


def test_a_chat_is_seen_while_it_runs_and_after(
    serving: HttpServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "PATIENCE_SECONDS", 0.0)
    with serving.http.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hello there"},
            ],
            "stream": True,
        },
    ) as answer:
        # The scripted engine takes a step when told to, so that the reply stops on its way.
        lines = answer.iter_lines()
        assert next(lines) == generation.WAITING.decode().strip()
        serving.engine.advance()
        while not next(lines):
            pass
        (asked,) = serving.engine.submissions
        seen = serving.gateway.transcript(asked.request_id)
        assert seen is not None
        assert seen.request_id == asked.request_id
        assert (seen.conversation.title, seen.conversation.user) == ("hello there", "anybody")
        assert [one.role for one in seen.messages] == ["system", "user", "assistant"]
        assert seen.messages[-1].content == "You"
        assert seen.num_output_tokens == 1
        with serving.running():
            list(lines)
    ended = serving.gateway.transcript(asked.request_id)
    assert ended is not None
    assert ended.messages[-1].content == "You said: hello there"
    assert ended.messages[-1].usage is not None
    assert ended.request_id is None
    assert ended.version > seen.version
    assert not serving.gateway.holds(asked.origin.conversation)
    assert serving.gateway.transcript("other") is None


def test_those_that_ended_last_are_kept(serving: HttpServing) -> None:
    number = ENDED_KEPT + 3
    for n in range(number):
        assert serving.ask(str(n)).status_code == 200
    ids = [one.request_id for one in serving.engine.submissions]
    kept = [serving.gateway.transcript(one) is not None for one in ids]
    assert kept == [False] * 2 + [True] * (number - 2)


def test_what_was_refused_is_not_kept(serving: HttpServing) -> None:
    assert serving.ask("x " * 3000).status_code == 400
    (asked,) = serving.engine.submissions
    assert serving.gateway.transcript(asked.request_id) is None


def test_a_prompt_is_seen_as_a_message(serving: HttpServing) -> None:
    with serving.running():
        serving.http.post("/v1/completions", json={"prompt": "Once"})
    seen = serving.gateway.transcript(serving.engine.submissions[0].request_id)
    assert seen is not None
    assert [(one.role, one.content) for one in seen.messages] == [
        ("user", "Once"),
        ("assistant", "And then: Once"),
    ]


def facts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the log for replies that are over, as data."""
    return [one.__dict__["facts"] for one in caplog.records if "facts" in one.__dict__]


def test_each_reply_has_a_line_in_the_log(
    serving: HttpServing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "app.gateway.exchange")
    assert serving.ask("hello there", n=2).status_code == 200
    first, second = facts(caplog)
    asked = serving.engine.submissions
    assert [first["id"], second["id"]] == [one.request_id for one in asked]
    known = {"user": "anybody", "endpoint": "/v1/chat/completions", "end": "stop"}
    assert first.items() >= known.items()
    assert first["model"] == serving.engine.status().model
    assert first["output_tokens"] == 4
    assert min(first[key] for key in ("queue_s", "ttft_s", "tpot_s", "seconds")) >= 0
    assert "error" not in first
    line = caplog.messages[0]
    assert line.startswith(f"anybody /v1/chat/completions {first['model']} {first['id']}: ")
    assert line.endswith(", end stop")


def test_a_reply_without_its_client_has_a_line_too(
    serving: HttpServing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "app.gateway.exchange")
    monkeypatch.setattr(generation, "PATIENCE_SECONDS", 0.0)
    body = {"messages": [{"role": "user", "content": "hello there"}], "stream": True}
    with serving.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    serving.until(lambda: bool(facts(caplog)))
    (left,) = facts(caplog)
    assert (left["user"], left["end"]) == ("anybody", "left")
