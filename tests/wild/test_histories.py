"""Histories as clients send them back: a call without arguments has none, however that is said,
one whose arguments are broken keeps them, and a reply that said nothing is no error.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from engine.api.client import ChatMessage
from tests.support.chat_requests import parse
from tests.support.http_serving import HttpServing

ASKED = {"role": "user", "content": "what is the time?"}
LEFT_OUT = object()  # the field is not stated at all


class Case(NamedTuple):
    report: str
    arguments: Any
    read: dict[str, Any]


CASES = {
    "empty text": Case("vllm-project/vllm#19419", "", {}),
    "blank text": Case("NousResearch/hermes-agent#83937", " \n", {}),
    "null": Case("mudler/vllm.cpp#526", None, {}),
    "null as text": Case("", "null", {}),
    "left out": Case("langchain-ai/langchain#27602", LEFT_OUT, {}),
    "an empty object": Case("", {}, {}),
    "an object": Case("", {"zone": "Ost", "é": [1, None]}, {"zone": "Ost", "é": [1, None]}),
    "as it should be": Case("", '{"zone": "Ost"}', {"zone": "Ost"}),
    "cut off": Case("vllm-project/vllm#43995", '{"zone": "Os', {"INVALID_JSON": '{"zone": "Os'}),
    "an opening brace": Case("ggml-org/llama.cpp#25510", "{", {"INVALID_JSON": "{"}),
    "no comma": Case(
        "router-for-me/CLIProxyAPI#2001", '{"a": "b" "c": 1}', {"INVALID_JSON": '{"a": "b" "c": 1}'}
    ),
    "Python": Case("", "{'zone': None}", {"INVALID_JSON": "{'zone': None}"}),
    "two objects": Case("", "{}{}", {"INVALID_JSON": "{}{}"}),
    "a list": Case("sgl-project/sglang#28035", '["Ost"]', {"INVALID_JSON": '["Ost"]'}),
    "a text": Case("sgl-project/sglang#28035", '"Ost"', {"INVALID_JSON": '"Ost"'}),
    "a number": Case("", "1" * 5000, {"INVALID_JSON": "1" * 5000}),
    "deep": Case("", "[" * 100_000, {"INVALID_JSON": "[" * 100_000}),
    "made text twice": Case("", json.dumps('{"zone": "Ost"}'), {"zone": "Ost"}),
}


def called(name: str, arguments: object, /, **fields: object) -> dict[str, object]:
    return fields | ({} if arguments is LEFT_OUT else {name: arguments})


def of_chats(serving: HttpServing, arguments: object) -> tuple[ChatMessage, ...]:
    function = called("arguments", arguments, name="time")
    reply = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "function": function}],
    }
    gave = {"role": "tool", "tool_call_id": "c", "content": "noon"}
    return asked(serving, "/v1/chat/completions", messages=[ASKED, reply, gave])


def of_responses(serving: HttpServing, arguments: object) -> tuple[ChatMessage, ...]:
    call = called("arguments", arguments, type="function_call", call_id="c", name="time")
    gave = {"type": "function_call_output", "call_id": "c", "output": "noon"}
    return asked(serving, "/v1/responses", input=[ASKED, call, gave])


def of_messages(serving: HttpServing, arguments: object) -> tuple[ChatMessage, ...]:
    block = called("input", arguments, type="tool_use", id="c", name="time")
    gave = {"type": "tool_result", "tool_use_id": "c", "content": "noon"}
    messages = [
        ASKED,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [gave]},
    ]
    return asked(serving, "/v1/messages", max_tokens=9, messages=messages)


def of_mqtt(serving: HttpServing, arguments: object) -> tuple[ChatMessage, ...]:
    function = called("arguments", arguments, name="time")
    reply = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    gave = {"role": "tool", "tool_call_id": "c", "content": "noon"}
    return tuple(turn.message() for turn in parse(messages=[ASKED, reply, gave]).messages)


def asked(serving: HttpServing, path: str, **body: object) -> tuple[ChatMessage, ...]:
    with serving.running():
        answer = serving.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return serving.engine.submissions[-1].messages


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("interface", [of_chats, of_responses, of_messages, of_mqtt])
def test_a_call_has_its_arguments_however_they_are_sent(
    serving: HttpServing, interface: Any, case: str
) -> None:
    _, arguments, read = CASES[case]
    (call,) = interface(serving, arguments)[1].tool_calls
    assert (call.name, call.id, call.values()) == ("time", "c", read)


@pytest.mark.parametrize("arguments", [[], 1, True])
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/v1/chat/completions", "messages[1].tool_calls[0].function.arguments"),
        ("/v1/responses", "input[1].arguments"),
        ("/v1/messages", "messages[1].content[0].input"),
    ],
)
def test_what_are_no_arguments_is_refused(
    serving: HttpServing, path: str, place: str, arguments: object
) -> None:
    function = {"name": "time", "arguments": arguments}
    reply = {"role": "assistant", "tool_calls": [{"function": function}]}
    item = {"type": "function_call", "call_id": "c", **function}
    body = {"messages": [ASKED, reply, ASKED], "input": [ASKED, item, ASKED]}
    if path == "/v1/messages":
        block = {"type": "tool_use", "id": "c", "name": "time", "input": arguments}
        said = {"role": "assistant", "content": [block]}
        body = {"messages": [ASKED, said, ASKED], "max_tokens": 9}
    answer = serving.http.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    if path == "/v1/messages":
        assert error["message"].startswith(place)
    else:
        assert error["param"] == place


# What clients send of a reply that said nothing, and of a tool that gave nothing.
SILENT: dict[str, tuple[str, dict[str, Any]]] = {
    "null": ("tashfeenahmed/freellmapi#165", {"role": "assistant", "content": None}),
    "left out": ("", {"role": "assistant"}),
    "no calls": ("", {"role": "assistant", "content": None, "tool_calls": []}),
    "thoughts": ("", {"role": "assistant", "content": None, "reasoning_content": "Hm."}),
    "a tool": ("", {"role": "tool", "content": None, "tool_call_id": "c"}),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_message_may_say_nothing(serving: HttpServing, case: str) -> None:
    _, silent = SILENT[case]
    call = {"id": "c", "function": {"name": "time"}}
    messages = [ASKED, {"role": "assistant", "tool_calls": [call]}, silent, ASKED]
    got = asked(serving, "/v1/chat/completions", messages=messages)
    assert (got[2].role, got[2].content) == (silent["role"], "")
    assert parse(messages=messages).messages[2].message() == got[2]
