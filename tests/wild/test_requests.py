"""Requests as clients and their serializers write them."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tests.support.chat_requests import parse
from tests.support.http_serving import HttpServing

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {}}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


TOOLS = {
    "no description": {"type": "function", "function": {"name": "f", "description": None}},
    "no parameters": {"type": "function", "function": {"name": "f", "parameters": None}},
    "not strict": {"type": "function", "function": {"name": "f", "strict": None}},
    "no type": {"function": {"name": "f"}},
    "null for a type": {"type": None, "function": {"name": "f"}},
}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("case", TOOLS)
def test_null_in_a_function_is_what_is_not_stated(
    serving: HttpServing, case: str, choice: str
) -> None:
    answer = serving.ask(tools=[TOOLS[case]], tool_choice=choice)
    assert answer.status_code == 200, answer.text
    told = {"type": "function", "function": {"name": "f"}}
    assert serving.engine.submissions[-1].sampling["tools"] == [told]
    assert parse(tools=[TOOLS[case]]).sampling()["tools"] == [told]


def answered(serving: HttpServing, path: str, body: dict[str, Any]) -> str:
    """The second message that the engine was given."""
    with serving.running():
        answer = serving.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    messages = serving.engine.submissions[-1].messages
    return messages[1].content if len(messages) > 1 else ""


DECLINED = [{"type": "refusal", "refusal": "I cannot."}]


@pytest.mark.parametrize(
    ("path", "body", "second"),
    [
        (CHAT, {"messages": [*HI, {"role": "assistant", "content": DECLINED}, *HI]}, "I cannot."),
        (RESPONSES, {"input": [*HI, {"role": "assistant", "content": DECLINED}, *HI]}, "I cannot."),
        (
            CHAT,
            {
                "messages": [
                    *HI,
                    {
                        "role": "assistant",
                        "content": "I look.",
                        "tool_calls": [{"id": None, "type": None, "function": {"name": "f"}}],
                    },
                    {"role": "tool", "tool_call_id": None, "content": "x"},
                ]
            },
            "I look.",
        ),
        (CHAT, {"messages": HI, "model": ""}, ""),
        (RESPONSES, {"input": HI, "model": ""}, ""),
        (
            MESSAGES,
            {
                "messages": HI,
                "max_tokens": 9,
                "tools": [{"name": "f", "description": None, "input_schema": SCHEMA}],
            },
            "",
        ),
    ],
)
def test_what_others_take_is_served(
    serving: HttpServing, path: str, body: dict[str, Any], second: str
) -> None:
    assert answered(serving, path, body) == second


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HI, "max_tokens": 10**6}, "max_tokens"),
        (CHAT, {"messages": HI, "max_completion_tokens": 10**6}, "max_completion_tokens"),
        (RESPONSES, {"input": "hi", "max_output_tokens": 10**6}, "max_output_tokens"),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 10**6}, "max_tokens"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
            "messages[0].content[0].type",
        ),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "input[0].content[0].text",
        ),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": {}}]}, "input[0].output"),
        (
            CHAT,
            {"messages": [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]},
            "messages[1].tool_calls[0].function.name",
        ),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_fault_has_the_clients_own_name_and_place(
    serving: HttpServing, path: str, body: dict[str, Any], param: str, is_stream: bool
) -> None:
    answer = serving.http.post(path, json=body | {"stream": is_stream})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param} ")


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, "/v1/completions", "/tokenize"])
def test_a_compressed_request_is_refused_as_such(serving: HttpServing, path: str) -> None:
    """It was refused as JSON that cannot be read."""
    body = gzip.compress(b'{"messages": []}')
    answer = serving.http.post(path, content=body, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 400
    told = "content-encoding is 'gzip'; it must be identity, or left out"
    assert answer.json()["error"]["message"] == told
