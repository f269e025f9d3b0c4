"""Calls that must be made: in each interface the reply is held to what the tools take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from engine.api.client import Submission
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
BLOCKS: list[Any] = [
    {"name": "weather", "input_schema": SCHEMA},
    {"name": "time", "input_schema": {"type": "object"}},
]
FUNCTIONS: list[Any] = [
    {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": None},
    {"type": "function", "name": "time", "parameters": None, "strict": None},
]
ASKING: list[Any] = [{"role": "user", "content": "the weather?"}]


def reply(submission: Submission) -> str:
    """Reply with the stated structure."""
    if (structure := submission.sampling.get("structure")) is None:
        return "none"
    schema: Any = structure
    if schema["json_schema"].get("type") == "array":
        calls = [{"name": "time", "parameters": {}}, {"name": "weather", "parameters": {}}]
        return json.dumps(calls[: schema["json_schema"].get("maxItems", 2)])
    return '{"place": "Oslo"}'


@pytest.fixture(scope="module")
def forced() -> Iterator[HttpServing]:
    with http_serving(ScriptedEngine(reply)) as one:
        yield one
        one.check_idle()


def structure_of(serving: HttpServing) -> Any:
    return serving.engine.submissions[-1].sampling["structure"]["json_schema"]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "tool", "name": "weather"}, [("weather", {"place": "Oslo"})]),
        ({"type": "any"}, [("time", {}), ("weather", {})]),
        ({"type": "any", "disable_parallel_tool_use": True}, [("time", {})]),
    ],
)
def test_of_messages(
    forced: HttpServing, choice: Any, expected: list[tuple[str, object]], is_stream: bool
) -> None:
    client = anthropic.Anthropic(base_url=forced.url, api_key="any", max_retries=0)
    asked: Any = {"model": "scripted", "max_tokens": 50, "messages": ASKING, "tools": BLOCKS}
    with forced.running():
        if is_stream:
            with client.messages.stream(**asked, tool_choice=choice) as stream:
                got = stream.get_final_message()
        else:
            got = client.messages.create(**asked, tool_choice=choice)
    assert [(one.name, one.input) for one in got.content if one.type == "tool_use"] == expected
    assert (len(got.content), got.stop_reason) == (len(expected), "tool_use")
    schema = structure_of(forced)
    if "name" in choice:
        assert schema == SCHEMA
    else:
        assert [one["properties"]["name"]["const"] for one in schema["items"]["anyOf"]] == [
            *("weather", "time")
        ]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"tool_choice": {"type": "function", "name": "weather"}},
            [("weather", '{"place": "Oslo"}')],
        ),
        ({"tool_choice": "required"}, [("time", "{}"), ("weather", "{}")]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [("time", "{}")]),
    ],
)
def test_of_responses(
    forced: HttpServing, fields: Any, expected: list[tuple[str, str]], is_stream: bool
) -> None:
    client = openai.OpenAI(base_url=f"{forced.url}/v1", api_key="any", max_retries=0)
    asked: Any = {"model": "scripted", "input": "the weather?", "tools": FUNCTIONS, **fields}
    with forced.running():
        if is_stream:
            with client.responses.stream(**asked) as stream:
                got: Any = stream.get_final_response()
        else:
            got = client.responses.create(**asked)
    calls = [(one.name, one.arguments) for one in got.output]
    assert (calls, got.output_text) == (expected, "")
    choice = got.tool_choice
    stated = choice if isinstance(choice, str) else choice.to_dict()
    assert stated == asked["tool_choice"]
    # The ids of the reply are not how its model writes calls, so they are not gone on from.
    outcome: Any = {"type": "function_call_output", "call_id": got.output[0].call_id, "output": "x"}
    with forced.running():
        client.responses.create(model="scripted", input=[outcome], previous_response_id=got.id)
    after = forced.engine.submissions[-1]
    assert (after.context, after.messages[1].tool_calls[0].name) == (None, expected[0][0])


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/messages",
            {"tool_choice": {"type": "any"}},
            "tool_choice.type is 'any'; the tools are none",
        ),
        (
            "/v1/messages",
            {"tools": BLOCKS, "tool_choice": {"type": "tool", "name": "x"}},
            "tool_choice.name is 'x'; the tools are 'weather', 'time'",
        ),
        (
            "/v1/messages",
            {"tools": BLOCKS, "tool_choice": {"type": "tool"}},
            "tool_choice.name is missing; it must be text, the name of a tool",
        ),
        (
            "/v1/responses",
            {"tools": FUNCTIONS, "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice is 'x'; the tools are 'weather', 'time'",
        ),
        (
            "/v1/responses",
            {"tool_choice": {"type": "mcp"}},
            "it must be none, auto, required, or the function to call",
        ),
    ],
)
def test_what_is_wrong_is_named(
    forced: HttpServing, path: str, fields: dict[str, Any], message: str
) -> None:
    asked = {"messages": ASKING, "max_tokens": 5, "input": "hello", **fields}
    answer = forced.http.post(path, json=asked)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_chat_that_may_call_one_tool_tells_one() -> None:
    calls = "<tool_call>time {}</tool_call><tool_call>weather {}</tool_call>"
    tools = [{"type": "function", "function": {"name": "time"}}]
    with http_serving(ScriptedEngine(lambda _: calls)) as serving:
        whole = serving.ask(tools=tools, parallel_tool_calls=False).json()["choices"][0]
        assert [one["function"]["name"] for one in whole["message"]["tool_calls"]] == ["time"]
        required = serving.ask(tools=tools, parallel_tool_calls=False, tool_choice="required")
        assert required.headers.get("x-batchdeck-ignored") is None
        assert structure_of(serving)["maxItems"] == 1
