"""In which form replies are wanted: response_format, vLLM's fields, and calls that must be made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(
    ("fields", "structure"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            {"json_schema": SCHEMA},
        ),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a"]}, {"choice": ["a"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({}, None),
    ],
)
def test_each_way_to_say_it_reaches_the_engine(
    serving: HttpServing, fields: dict[str, Any], structure: dict[str, Any] | None
) -> None:
    assert serving.ask(**fields).status_code == 200
    with serving.running():
        answer = serving.http.post("/v1/completions", json={"prompt": "a", **fields})
    assert answer.status_code == 200
    for asked in serving.engine.submissions:
        assert asked.sampling.get("structure") == structure


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "it must be one of text"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
            "is missing; it must be a JSON schema",
        ),
        ({"guided_json": "{"}, "guided_json", "guided_json is not JSON"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "guided_regex is stated beside response_format; only one of them is allowed",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs",
            "has regex, choice; only one is allowed",
        ),
        ({"guided_choice": []}, "guided_choice", "guided_choice is '[]'; it must be a list of"),
        ({"tool_choice": "required"}, "tool_choice", "'required'; the tools are none"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "tool_choice is 'x'; the tools are 'time'",
        ),
        (
            {"tools": [TIME], "tool_choice": "required", "guided_regex": "a"},
            "tool_choice",
            "none or auto where the reply has a form",
        ),
        ({"tool_choice": "maybe"}, "tool_choice", "none, auto, required, or the function to call"),
    ],
)
def test_what_is_wrong_is_named(
    serving: HttpServing, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = serving.ask(**fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_a_function_that_must_be_called_is() -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    with http_serving(ScriptedEngine(lambda _: '{"city": "Oslo"}')) as serving:
        client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0)
        asks: dict[str, Any] = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "?"}],
            "tools": [WEATHER, TIME],
            "tool_choice": choice,
        }
        with serving.running():
            whole = client.chat.completions.create(**asks).choices[0]
            chunks = list(client.chat.completions.create(**asks, stream=True))
        assert whole.finish_reason == "tool_calls"
        assert whole.message.content is None
        assert whole.message.tool_calls is not None
        (call,) = whole.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')
        sent = [c.choices[0].delta.tool_calls for c in chunks if c.choices[0].delta.tool_calls]
        assert [(one.id, one.function.arguments) for one in sent[0]] == [
            (f"call_{serving.engine.submissions[1].request_id}_0", '{"city": "Oslo"}')
        ]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert all(not chunk.choices[0].delta.content for chunk in chunks)
        assert serving.engine.submissions[0].sampling["structure"] == {
            "json_schema": WEATHER["function"]["parameters"]
        }


def test_one_of_several_functions_must_be_called() -> None:
    reply = '[{"name": "time", "parameters": {}}, {"name": "weather", "parameters": {"city": "é"}}]'
    with http_serving(ScriptedEngine(lambda _: reply)) as serving:
        choice = serving.ask(tools=[WEATHER, TIME], tool_choice="required").json()["choices"][0]
        calls = [call["function"] for call in choice["message"]["tool_calls"]]
        assert calls == [
            {"name": "time", "arguments": "{}"},
            {"name": "weather", "arguments": '{"city": "é"}'},
        ]
        structure = serving.engine.submissions[0].sampling["structure"]
        names = [
            one["properties"]["name"]["const"] for one in structure["json_schema"]["items"]["anyOf"]
        ]
        assert names == ["weather", "time"]


def test_calls_that_are_cut_off_are_none() -> None:
    with http_serving(ScriptedEngine(lambda _: '[ {"name": "ti')) as serving:
        fields = {"tools": [TIME], "tool_choice": "required", "max_tokens": 1}
        choice = serving.ask(**fields).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def ann() -> Iterator[HttpServing]:
    """Whoever is asked for is Ann."""
    with http_serving(ScriptedEngine(lambda _: '{"name": "Ann", "age": 30}')) as one, one.running():
        yield one


def test_the_response_to_openai_s_client_is_parsed(ann: HttpServing) -> None:
    client = openai.OpenAI(base_url=f"{ann.url}/v1", api_key="any", max_retries=0)
    asked: dict[str, Any] = {"model": "scripted", "input": "?", "text_format": Person}
    got = client.responses.parse(**asked)
    assert got.output_parsed == Person(name="Ann", age=30)
    schema = ann.engine.submissions[-1].sampling["structure"]["json_schema"]
    assert (schema["required"], schema["additionalProperties"]) == (["name", "age"], False)
    assert got.text.format.to_dict() == {
        "type": "json_schema",
        "name": "Person",
        "schema": schema,
        "strict": True,
    }
    with client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_parsed == Person(name="Ann", age=30)


def test_the_message_to_anthropic_s_client_is_parsed(ann: HttpServing) -> None:
    client = anthropic.Anthropic(base_url=ann.url, api_key="any", max_retries=0)
    asked: dict[str, Any] = {
        "model": "scripted",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "?"}],
        "output_config": {"effort": "low"},
        "output_format": Person,
    }
    assert client.messages.parse(**asked).parsed_output == Person(name="Ann", age=30)
    sampling = ann.engine.submissions[-1].sampling
    assert sampling["structure"]["json_schema"]["required"] == ["name", "age"]
    assert sampling["chat_template_kwargs"] == {"reasoning_effort": "low"}
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().parsed_output == Person(name="Ann", age=30)
