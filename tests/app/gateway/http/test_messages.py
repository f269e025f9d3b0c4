"""/v1/messages, as Anthropic's own client sees it and on the wire."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anthropic
import pytest

from app.gateway.http import generation
from engine.api.client import ChatMessage
from engine.api.tools import ToolCall
from tests.support.http_serving import TIMEOUT, HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "Tells the weather.",
        "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
    }
]
CALLS = (
    'Let me see. <tool_call>weather {"place": "Oslo"}</tool_call>'
    '<tool_call>weather {"place": "Rome"}</tool_call>'
)
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


def connect(serving: HttpServing, key: str = "any") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=serving.url, api_key=key, max_retries=0)


@pytest.fixture
def client(serving: HttpServing) -> anthropic.Anthropic:
    return connect(serving)


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServing]:
    """A question for the weather gets calls, and any other message an echo."""
    with http_serving(ScriptedEngine({"the weather?": CALLS})) as one:
        yield one


def create(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    stated = {"model": "scripted", "max_tokens": 100, "messages": HELLO, **fields}
    message: anthropic.types.Message = client.messages.create(**stated)
    return message


def events(serving: HttpServing, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    body = {"max_tokens": 100, "messages": HELLO, "stream": True, **fields}
    with serving.running():
        answer = serving.http.post("/v1/messages", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = []
    for piece in answer.text.split("\n\n")[:-1]:
        name, data = piece.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert payload["type"] == name.removeprefix("event: ")
        found.append(payload)
    return found


def test_a_whole_message(serving: HttpServing, client: anthropic.Anthropic) -> None:
    with serving.running():
        got = create(client, metadata={"user_id": "ann"})
        again = create(client)
    assert (got.type, got.role, got.model) == ("message", "assistant", "scripted")
    assert [block.to_dict() for block in got.content] == [
        {"type": "text", "text": "You said: hello"}
    ]
    assert (got.stop_reason, got.stop_sequence) == ("end_turn", None)
    asked = serving.engine.submissions[0]
    assert got.id == f"msg_{asked.request_id}"
    assert (asked.origin.source, asked.origin.user, asked.origin.title) == (
        "http",
        "anybody",
        "hello",
    )
    prompt = len(serving.engine.prompts[asked.request_id])
    for usage in (got.usage, again.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == prompt
        assert usage.output_tokens == 3


def test_the_wire_of_a_stream(serving: HttpServing) -> None:
    started, ping, begun, *pieces, ended, last, end = events(serving)
    (asked,) = serving.engine.submissions
    assert started["message"]["content"] == []
    assert started["message"]["stop_reason"] is None
    assert started["message"]["usage"]["input_tokens"] == len(
        serving.engine.prompts[asked.request_id]
    )
    assert ping == {"type": "ping"}
    assert begun == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert "".join(one["delta"]["text"] for one in pieces) == "You said: hello"
    assert {(one["type"], one["index"], one["delta"]["type"]) for one in pieces} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert ended == {"type": "content_block_stop", "index": 0}
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end == {"type": "message_stop"}


def test_what_is_asked_reaches_the_engine(
    serving: HttpServing, client: anthropic.Anthropic
) -> None:
    with serving.running():
        create(
            client,
            max_tokens=9,
            system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
            extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 7},
            stop_sequences=["zz"],
            thinking={"type": "disabled"},
            messages=[
                {"role": "user", "content": "one"},
                {"role": "user", "content": [{"type": "text", "text": "two"}]},
            ],
        )
    (asked,) = serving.engine.submissions
    assert asked.messages == (
        ChatMessage("system", "Be\nbrief."),
        ChatMessage("user", "one\n\ntwo"),
    )
    assert asked.sampling == {
        "max_tokens": 9,
        "stop": ("zz",),
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_the_system_may_add_to_what_the_user_said(
    serving: HttpServing, client: anthropic.Anthropic
) -> None:
    """As coding assistants have it do, who leave it there in the turns that follow."""
    added: list[Any] = [*HELLO, {"role": "system", "content": "Be brief."}]
    with serving.running():
        create(client, messages=added)
    (asked,) = serving.engine.submissions
    assert asked.messages == (ChatMessage("user", "hello"), ChatMessage("system", "Be brief."))


def test_a_tool_is_called_and_its_result_is_told(serving: HttpServing) -> None:
    client = connect(serving)
    asking: Any = {"role": "user", "content": "the weather?"}
    with serving.running():
        got = create(client, messages=[asking], tools=TOOLS, tool_choice={"type": "auto"})
        assert got.stop_reason == "tool_use"
        text, *uses = got.content
        assert (text.type, text.type == "text" and text.text) == ("text", "Let me see.")
        assert [(one.type, one.name, one.input) for one in uses if one.type == "tool_use"] == [
            ("tool_use", "weather", {"place": "Oslo"}),
            ("tool_use", "weather", {"place": "Rome"}),
        ]
        ids = [one.id for one in uses if one.type == "tool_use"]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": ids[0], "content": "rain"},
            {
                "type": "tool_result",
                "tool_use_id": ids[1],
                "content": [{"type": "text", "text": "sun"}],
            },
            {"type": "text", "text": "so?"},
        ]
        create(
            client,
            messages=[asking, got.to_param(), {"role": "user", "content": results}],
            tools=TOOLS,
        )
    first, second = serving.engine.submissions
    function = {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": TOOLS[0]["input_schema"],
    }
    assert first.sampling["tools"] == [{"type": "function", "function": function}]
    assert second.messages == (
        ChatMessage("user", "the weather?"),
        ChatMessage(
            "assistant",
            "Let me see.",
            tool_calls=tuple(
                ToolCall("weather", json.dumps({"place": place}), name)
                for place, name in zip(("Oslo", "Rome"), ids, strict=True)
            ),
        ),
        ChatMessage("tool", "rain", tool_call_id=ids[0], name="weather"),
        ChatMessage("tool", "sun", tool_call_id=ids[1], name="weather"),
        ChatMessage("user", "so?"),
    )


def test_a_deferred_tool_is_offered_once_a_result_refers_to_it(serving: HttpServing) -> None:
    """So do coding assistants that have many tools, and search among them."""
    client, search = connect(serving), {"name": "search", "input_schema": {"type": "object"}}
    tools = [search, {**TOOLS[0], "defer_loading": True}]
    asked = [{"role": "user", "content": "the weather?"}]
    found: list[Any] = [
        *asked,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "search", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "tool_reference", "tool_name": "weather"}],
                }
            ],
        },
    ]
    with serving.running():
        for messages in (asked, found):
            create(client, messages=messages, tools=tools)
    before, after = serving.engine.submissions
    names = [
        [tool["function"]["name"] for tool in one.sampling["tools"]] for one in (before, after)
    ]
    assert names == [["search"], ["search", "weather"]]
    result = "The tool weather can be called now."
    assert after.messages[-1] == ChatMessage("tool", result, tool_call_id="a", name="search")


def test_a_stream_tells_calls_as_blocks(serving: HttpServing) -> None:
    client = connect(serving)
    asking: list[Any] = [{"role": "user", "content": "the weather?"}]
    with (
        serving.running(),
        client.messages.stream(
            model="scripted", max_tokens=100, messages=asking, tools=TOOLS
        ) as stream,
    ):
        got = stream.get_final_message()
    assert [(one.type, getattr(one, "input", None)) for one in got.content] == [
        ("text", None),
        ("tool_use", {"place": "Oslo"}),
        ("tool_use", {"place": "Rome"}),
    ]
    assert got.stop_reason == "tool_use"
    sent = events(serving, messages=asking, tools=TOOLS)
    assert [one["index"] for one in sent if one["type"] == "content_block_start"] == [0, 1, 2]
    assert [one["index"] for one in sent if one["type"] == "content_block_stop"] == [0, 1, 2]


def test_tools_may_be_called_one_by_one_or_not_at_all(serving: HttpServing) -> None:
    client, asking = connect(serving), [{"role": "user", "content": "the weather?"}]
    with serving.running():
        one: Any = {"type": "auto", "disable_parallel_tool_use": True}
        got = create(client, messages=asking, tools=TOOLS, tool_choice=one)
        assert [block.type for block in got.content] == ["text", "tool_use"]
        create(client, messages=asking, tools=TOOLS, tool_choice={"type": "none"})
    assert serving.engine.submissions[-1].sampling["tools"] == []


def test_thinking_is_told_to_those_who_ask_for_it() -> None:
    with http_serving(ScriptedEngine(lambda _: "<think>hm</think>yes")) as serving:
        client = connect(serving)
        with serving.running():
            got = create(client, thinking=THINKING)
            assert [block.to_dict() for block in got.content] == [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "yes"},
            ]
            create(client, messages=[*HELLO, got.to_param(), {"role": "user", "content": "and?"}])
            for stated in ({}, {"thinking": {**THINKING, "display": "omitted"}}):
                assert [block.type for block in create(client, **stated).content] == ["text"]
            updates = create(client, thinking={**THINKING, "display": "updates"})
            assert [block.type for block in updates.content] == ["thinking", "text"]
            create(client, thinking={"type": "between_tools"})
        sampling = [one.sampling.get("chat_template_kwargs") for one in serving.engine.submissions]
        thinks, does_not = {"enable_thinking": True}, {"enable_thinking": False}
        assert sampling == [thinks, None, None, thinks, thinks, does_not]
        assert serving.engine.submissions[1].messages[1] == ChatMessage("assistant", "yes", "hm")
        sent = events(serving, thinking=THINKING)
        pieces = [one["delta"] for one in sent if one["type"] == "content_block_delta"]
        assert "".join(one.get("thinking", "") for one in pieces) == "hm"
        assert "".join(one.get("text", "") for one in pieces) == "yes"
        kinds = [
            (one["index"], one["content_block"]["type"])
            for one in sent
            if one["type"] == "content_block_start"
        ]
        assert kinds == [(0, "thinking"), (1, "text")]


def test_why_it_stopped(serving: HttpServing, client: anthropic.Anthropic) -> None:
    with serving.running():
        got = create(client, stop_sequences=["zz", " hello"])
        assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", " hello")
        assert create(client, max_tokens=2).stop_reason == "max_tokens"
        snapshot = serving.engine.snapshot()
        assert snapshot is not None
        most = snapshot.model.max_model_len
        long = [{"role": "user", "content": "x " * (most - 10)}]
        got = create(client, messages=long, max_tokens=most)
        assert got.stop_reason == "model_context_window_exceeded"


def test_tokens_are_counted(serving: HttpServing, client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "scripted", "system": "Be brief.", "messages": HELLO}
    got = client.messages.count_tokens(**fields, tools=TOOLS, thinking=THINKING)
    with serving.running():
        create(client, system="Be brief.")
    (prompt,) = serving.engine.prompts.values()
    assert got.input_tokens == len(prompt)
    (asked,) = serving.engine.tokenized
    assert set(asked.sampling) == {"tools", "chat_template_kwargs"}


@contextmanager
def asking(serving: HttpServing, key: str = "any") -> Iterator[None]:
    """A request that is waited for, as the engine does not step."""
    count = len(serving.engine.submissions)
    thread = threading.Thread(target=partial(_give_up, serving, key), daemon=True)
    thread.start()
    serving.until(lambda: len(serving.engine.submissions) > count)
    yield
    serving.engine.abort(serving.engine.submissions[-1].request_id)
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def _give_up(serving: HttpServing, key: str) -> None:
    with pytest.raises(anthropic.ServiceUnavailableError, match="the operator of the server"):
        create(connect(serving, key))


def test_keys_and_what_a_user_may_take() -> None:
    keys = {"ann": {"key": "k", "requests": 1}}
    with http_serving(keys=keys) as serving:
        with pytest.raises(anthropic.AuthenticationError):
            create(connect(serving, "wrong"))
        with serving.running():
            create(connect(serving, "k"))
        assert serving.engine.submissions[-1].origin.user == "ann"
        with (
            asking(serving, "k"),
            pytest.raises(anthropic.RateLimitError, match="at most 1 are allowed") as caught,
        ):
            create(connect(serving, "k"))
        assert caught.value.type == "rate_limit_error"
        assert "retry-after" in caught.value.response.headers


def test_a_full_server_is_overloaded() -> None:
    with http_serving(max_requests=1) as serving:
        with asking(serving), pytest.raises(anthropic.APIStatusError) as caught:
            create(connect(serving))
        assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens is null; it must be an integer from 1 to 2147483647"),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": "Hi"},
                    {"role": "system", "content": "So"},
                ]
            },
            "messages[1].role is 'assistant'; the last message must be the user's, or",
        ),
        (
            {"messages": [{"role": "system", "content": "Be brief."}]},
            "messages[0].role is 'system'; the last message must be the user's",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].type is 'image'; models are served for text only, so of the"
            " user it must be text or tool_result",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id is missing; it must be text",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
            "messages[0].content[0].name is missing; it must be text in a block of type tool_use",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type is 'image'"),
        (
            {"system": [{"type": "tool_reference", "tool_name": "f"}]},
            "system[0].type is 'tool_reference'; models are served for text only, so it must be"
            " 'text'",
        ),
        *(
            (
                {
                    "messages": [
                        {
                            "role": "user",
                            "content": [
                                {"type": "tool_result", "tool_use_id": "a", "content": [block]}
                            ],
                        }
                    ]
                },
                f"messages[0].content[0].content[0].{wrong}",
            )
            for block, wrong in (
                ({"type": "image"}, "type is 'image'; models are served for text only, so it must"),
                ({"type": "tool_reference"}, "tool_name is missing; it must be text"),
            )
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing; it must be an object"),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash", "input_schema": {}}]},
            "tools[0].type is 'bash_20250124'; it must be custom, or left out",
        ),
        (
            {"tool_choice": {"type": "some"}},
            "tool_choice.type is 'some'; it must be one of auto, none, any, tool",
        ),
        ({"thinking": {"type": "hard"}}, "thinking.type is 'hard'; it must be one of enabled"),
        ({"stop_sequences": [""]}, "stop_sequences is ('',); it must be a list of non-empty"),
    ],
)
def test_what_is_wrong_is_named(serving: HttpServing, fields: dict[str, Any], message: str) -> None:
    body = {"max_tokens": 9, "messages": HELLO, **fields}
    answer = serving.http.post("/v1/messages", json=body)
    payload = answer.json()
    assert (answer.status_code, payload["type"]) == (400, "error")
    assert payload["error"]["type"] == "invalid_request_error"
    assert message in payload["error"]["message"]
    assert serving.engine.submissions == []


def test_a_prompt_that_is_too_long_is_refused_in_anthropic_s_words(serving: HttpServing) -> None:
    """Claude Code looks for them, and shortens the chat by the two numbers."""
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "x " * 3000}]}
    answer = serving.http.post("/v1/messages", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert re.search(r"prompt is too long: \d+ tokens > \d+ ", error["message"])


def test_an_error_within_a_stream_is_an_event(
    serving: HttpServing, client: anthropic.Anthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "PATIENCE_SECONDS", 0.0)
    with client.messages.stream(model="scripted", max_tokens=9, messages=HELLO) as stream:
        assert next(iter(stream)).type == "message_start"
        (asked,) = serving.engine.submissions
        serving.engine.break_request(asked.request_id, "the device is gone")
        with pytest.raises(anthropic.APIStatusError, match="the device is gone") as caught:
            stream.get_final_message()
    assert caught.value.type == "api_error"


def test_a_stream_that_waits_says_so(serving: HttpServing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "PATIENCE_SECONDS", 0.0)
    body = {"max_tokens": 9, "messages": HELLO, "stream": True}
    with serving.http.stream("POST", "/v1/messages", json=body) as answer:
        names = (line for line in answer.iter_lines() if line.startswith("event: "))
        assert [next(names) for _ in range(3)] == [
            "event: message_start",
            "event: ping",
            "event: ping",
        ]
