"""/v1/responses, as OpenAI's own client sees it and on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from app.gateway.http import generation, response_memory
from engine.api.client import ChatMessage
from engine.api.tools import ToolCall
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
]


REPLIES = {
    "the weather?": 'Let me see. <tool_call>weather {"place": "Oslo"}</tool_call>'
    '<tool_call>weather {"place": "Rome"}</tool_call>',
    "think!": "<think>hm</think>yes",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServing]:
    with http_serving(ScriptedEngine(REPLIES)) as one:
        yield one


def connect(serving: HttpServing, key: str = "any") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{serving.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(serving: HttpServing) -> openai.OpenAI:
    return connect(serving)


def create(client: openai.OpenAI, asked: Any = "hello", **fields: Any) -> Any:
    return client.responses.create(model="scripted", input=asked, **fields)


def events(serving: HttpServing, asked: str, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types and whose numbers follow each other."""
    with serving.running():
        body = {"input": asked, "stream": True, **fields}
        answer = serving.http.post("/v1/responses", json=body)
    found = []
    for number, piece in enumerate(answer.text.split("\n\n")[:-1]):
        name, data = piece.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert (payload["type"], payload["sequence_number"]) == (
            name.removeprefix("event: "),
            number,
        )
        found.append(payload)
    return found


def test_a_whole_response(serving: HttpServing, client: openai.OpenAI) -> None:
    with serving.running():
        got = create(client, metadata={"a": "b"})
    assert (got.object, got.status, got.model) == ("response", "completed", "scripted")
    assert got.output_text == "You said: hello"
    assert [(one.type, one.role, one.status) for one in got.output] == [
        ("message", "assistant", "completed")
    ]
    (asked,) = serving.engine.submissions
    assert got.id == f"resp_{asked.request_id}"
    assert (asked.origin.source, asked.origin.title) == ("http", "hello")
    assert got.usage.input_tokens == len(serving.engine.prompts[asked.request_id])
    assert (got.usage.output_tokens, got.usage.total_tokens) == (3, got.usage.input_tokens + 3)
    assert (got.metadata, got.error, got.incomplete_details) == ({"a": "b"}, None, None)


def test_the_wire_of_a_stream(serving: HttpServing) -> None:
    sent = events(serving, "think!")
    kinds = [one["type"].removeprefix("response.") for one in sent]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    final = sent[-1]["response"]
    assert final["output"] == [one["item"] for one in sent if "item.done" in one["type"]]
    assert [one["content"][0]["text"] for one in final["output"]] == ["hm", "yes"]
    assert [one["output_index"] for one in sent if "item.added" in one["type"]] == [0, 1]
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    whole = serving.http.get(f"/v1/responses/{final['id']}").json()
    assert whole == final


def test_what_is_asked_reaches_the_engine(serving: HttpServing, client: openai.OpenAI) -> None:
    asked: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": "two"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "three"},
    ]
    with serving.running():
        create(
            client,
            asked,
            instructions="Be nice.",
            max_output_tokens=9,
            temperature=0.5,
            top_p=0.25,
            reasoning={"effort": "low"},
            text={"format": {"type": "text"}},
        )
    (submission,) = serving.engine.submissions
    assert submission.messages == (
        ChatMessage("system", "Be nice."),
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "one"),
        ChatMessage("assistant", "two", "hm", tool_calls=(ToolCall("f", "{}", "c"),)),
        ChatMessage("tool", "three", tool_call_id="c", name="f"),
    )
    assert submission.sampling == {
        "temperature": 0.5,
        "top_p": 0.25,
        "chat_template_kwargs": {"reasoning_effort": "low"},
        "max_tokens": 9,
    }


def test_a_function_is_called_and_its_result_goes_on(
    serving: HttpServing, client: openai.OpenAI
) -> None:
    with serving.running():
        got = create(client, "the weather?", tools=TOOLS)
        text, *calls = got.output
        assert (got.output_text, text.type) == ("Let me see.", "message")
        assert [(one.type, one.name, json.loads(one.arguments)) for one in calls] == [
            ("function_call", "weather", {"place": "Oslo"}),
            ("function_call", "weather", {"place": "Rome"}),
        ]
        results = [
            {"type": "function_call_output", "call_id": one.call_id, "output": "rain"}
            for one in calls
        ]
        create(client, results, tools=TOOLS, previous_response_id=got.id)
    first, second = serving.engine.submissions
    function = {"name": "weather", "parameters": PARAMETERS}
    assert first.sampling["tools"] == [{"type": "function", "function": function}]
    said, *outcomes = second.messages[1:]
    assert (said.content, [call.id for call in said.tool_calls]) == (
        "Let me see.",
        [one.call_id for one in calls],
    )
    assert [(one.role, one.content, one.tool_call_id) for one in outcomes] == [
        ("tool", "rain", one.call_id) for one in calls
    ]
    prompts = list(serving.engine.prompts.values())
    assert prompts[1][: len(prompts[0])] == prompts[0]


def test_a_stream_tells_calls_as_items(serving: HttpServing, client: openai.OpenAI) -> None:
    with (
        serving.running(),
        client.responses.stream(model="scripted", input="the weather?", tools=TOOLS) as stream,
    ):
        kinds = {event.type for event in stream}
        got = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert [one.type for one in got.output] == ["message", "function_call", "function_call"]


def test_one_function_or_none_may_be_called(serving: HttpServing, client: openai.OpenAI) -> None:
    with serving.running():
        got = create(client, "the weather?", tools=TOOLS, parallel_tool_calls=False)
        assert [one.type for one in got.output] == ["message", "function_call"]
        outcome = {
            "type": "function_call_output",
            "call_id": got.output[1].call_id,
            "output": "rain",
        }
        create(client, [outcome], tools=TOOLS, previous_response_id=got.id)
        assert serving.engine.submissions[-1].context is None
        create(client, "the weather?", tools=TOOLS, tool_choice="none")
    assert serving.engine.submissions[-1].sampling["tools"] == []


def test_a_conversation_goes_on_from_its_token_ids(
    serving: HttpServing, client: openai.OpenAI
) -> None:
    with serving.running():
        first = create(client, "one", instructions="Be nice.")
        second = create(client, "two", instructions="Be nice.", previous_response_id=first.id)
        third = create(client, "three", previous_response_id=second.id)
    asked = serving.engine.submissions
    assert [one.role for one in asked[1].messages] == ["system", "user", "assistant", "user"]
    assert asked[1].context is not None
    assert asked[1].context.num_messages == 3
    prompts = list(serving.engine.prompts.values())
    assert prompts[1][: len(prompts[0])] == prompts[0]
    # Other instructions stand before all else, and those of before are not kept.
    assert asked[2].context is None
    assert [one.content for one in asked[2].messages] == [
        *("one", "You said: one", "two", "You said: two", "three")
    ]
    assert third.previous_response_id == second.id


def test_it_is_asked_for_again_and_forgotten(serving: HttpServing, client: openai.OpenAI) -> None:
    with serving.running():
        got = create(client)
        unkept = create(client, store=False)
    assert client.responses.retrieve(got.id) == got
    client.responses.delete(got.id)
    for name in (got.id, unkept.id, "resp_none"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(name)
        with pytest.raises(openai.NotFoundError) as caught:
            create(client, previous_response_id=name)
        assert caught.value.param == "previous_response_id"
        assert caught.value.code == "previous_response_not_found"


def test_nobody_finds_what_is_another_users() -> None:
    keys = {"ann": {"key": "a"}, "bob": {"key": "b"}}
    with http_serving(keys=keys) as serving:
        ann, bob = connect(serving, "a"), connect(serving, "b")
        with serving.running():
            got = create(ann)
            with pytest.raises(openai.NotFoundError):
                create(bob, previous_response_id=got.id)
        for deed in (bob.responses.retrieve, bob.responses.delete):
            with pytest.raises(openai.NotFoundError):
                deed(got.id)
        with pytest.raises(openai.AuthenticationError):
            connect(serving, "c").responses.retrieve(got.id)
        assert ann.responses.retrieve(got.id).id == got.id


@pytest.mark.parametrize("bound", ["MOST_RESPONSES", "MOST_BYTES"])
def test_the_first_are_forgotten(
    serving: HttpServing, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(response_memory, bound, 2 if bound == "MOST_RESPONSES" else 2500)
    with serving.running():
        first, *others = [create(client) for _ in range(3)]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
        assert [client.responses.retrieve(one.id).id for one in others] == [o.id for o in others]
        if bound == "MOST_BYTES":
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(create(client, "long " * 1000).id)


def test_one_that_is_cut_off_is_incomplete(serving: HttpServing, client: openai.OpenAI) -> None:
    with serving.running():
        got = create(client, max_output_tokens=2)
    assert (got.status, got.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert got.output[-1].status == "incomplete"
    sent = events(serving, "hello", max_output_tokens=2)
    assert sent[-1]["type"] == "response.incomplete"
    assert sent[-2]["item"] == sent[-1]["response"]["output"][-1]


def test_an_error_within_a_stream_is_an_event(
    serving: HttpServing, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "PATIENCE_SECONDS", 0.0)
    with create(client, stream=True) as stream:
        received = iter(stream)
        assert next(received).type == "response.created"
        (asked,) = serving.engine.submissions
        serving.engine.break_request(asked.request_id, "the device is gone")
        *_, last = received
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.message == "the device is gone"
    assert serving.http.get(f"/v1/responses/{last.response.id}").status_code == 404


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "input", "input is missing; it must be text or a list of 1 to"),
        ({"input": []}, "input", "it must be text or a list of 1 to"),
        (
            {"input": [{"type": "item_reference", "id": "a"}]},
            "input[0].type",
            "is 'item_reference'; it must be one of message, function_call, function_call_output",
        ),
        ({"input": [{"content": "a"}]}, "input[0].role", "is missing; it must be one of system"),
        ({"input": [{"role": "user"}]}, "input[0].content", "is missing; it must be text or"),
        ({"input": [{"role": "assistant", "content": "a"}]}, "input[0]", "the last item must be"),
        (
            {
                "input": [
                    {"role": "assistant", "content": "a"},
                    {"role": "developer", "content": "b"},
                ]
            },
            "input[0]",
            "is 'assistant'; the last item must be the user's or a function's result",
        ),
        (
            {"input": [{"type": "function_call", "name": "f"}]},
            "input[0].call_id",
            "is missing; it must be text",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "f"}]},
            "input[0].output",
            "is missing; it must be text or a list of parts",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "models are served for text only",
        ),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools[0].type", "must be function"),
        ({"input": "a", "tool_choice": "some"}, "tool_choice", "it must be none, auto, required"),
        (
            {"input": "a", "text": {"format": {"type": "xml"}}},
            "text.format.type",
            "it must be one of text, json_object, json_schema",
        ),
        (
            {"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format.schema",
            "is missing; it must be a JSON schema",
        ),
        (
            {
                "input": "a",
                "text": {"format": {"type": "json_object"}},
                "tools": [{"type": "function", "name": "f"}],
                "tool_choice": "required",
            },
            "tool_choice",
            "it must be none or auto where the reply has a form",
        ),
        ({"input": "a", "truncation": "auto"}, "truncation", "it must be disabled, or left out"),
        ({"input": "a", "background": True}, "background", "it must be left out"),
        ({"input": "a", "conversation": "conv_1"}, "conversation", "it must be left out"),
    ],
)
def test_what_is_wrong_is_named(
    serving: HttpServing, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = serving.http.post("/v1/responses", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert serving.engine.submissions == []
