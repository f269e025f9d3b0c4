"""The built-in model answers in the structure that is asked for, whatever came before."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine.api.client import ChatMessage, Submission
from engine.api.lifecycle import FinishReason
from engine.api.stream import Finish, RequestStream
from engine.serving.host import EngineHost

QUESTION = ChatMessage("user", "What is a KV cache?")
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 120}
SCHEMA = {
    "type": "object",
    "properties": {
        "what": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["what", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def host(built_in: EngineHost) -> EngineHost:
    return built_in


def ask(host: EngineHost, **sampling: Any) -> RequestStream:
    return host.submit(Submission(messages=(QUESTION,), sampling=GREEDY | sampling))


def answer(stream: RequestStream) -> tuple[str, Finish]:
    text = ""
    for delta in stream:
        text += delta.text
        if delta.finish is not None:
            return text, delta.finish
    raise AssertionError("the stream did not end")


def test_replies_have_their_structures_side_by_side(host: EngineHost) -> None:
    alone, _ = answer(ask(host))
    streams = [
        ask(host, structure={"json_schema": SCHEMA}),
        ask(host),
        ask(host, structure={"choice": ["yes", "no"]}),
        ask(host, structure={"regex": "[0-9]{3}-[0-9]{4}"}, ignore_eos=True),
        ask(host, structure={"grammar": 'root ::= "<" [a-z]+ ">"'}, logit_bias={}),
    ]
    schema, free, choice, number, _tag = [answer(stream) for stream in streams]
    jsonschema.validate(json.loads(schema[0]), SCHEMA)
    assert choice[0] in ("yes", "no")
    assert (len(number[0]), number[0][3]) == (8, "-")
    assert free[0] == alone
    assert {one[1].reason for one in (schema, choice, number)} == {FinishReason.STOP}
    assert any(record.structured_rows for record in host.step_records(0))


def test_a_wrong_structure_is_refused_and_nothing_else(host: EngineHost) -> None:
    streams = [ask(host, structure={"regex": "(a"}), ask(host, structure={"choice": ["yes"]})]
    refused, served = [answer(stream) for stream in streams]
    error = refused[1].error
    assert error is not None
    assert (error.type, error.param) == ("invalid_request_error", "structure")
    assert "unclosed group" in error.message
    assert served[0] == "yes"


def test_a_prompt_of_token_ids_is_answered_too(host: EngineHost) -> None:
    sampling = GREEDY | {"structure": {"choice": ["yes", "no"]}}
    text, _ = answer(host.submit(Submission(prompt=(5, 6, 7), sampling=sampling)))
    assert text in ("yes", "no")


def test_a_structured_reply_that_was_cut_off_goes_on(host: EngineHost) -> None:
    structure = {"structure": {"regex": "[0-9]{3}-[0-9]{4}"}}
    whole, _ = answer(ask(host, **structure))
    short, finish = answer(ask(host, **structure, max_tokens=3))
    assert finish.reason is FinishReason.LENGTH
    again = Submission(
        messages=(QUESTION, ChatMessage("assistant", short)),
        context=finish.context,
        num_partial=3,
        sampling=GREEDY | structure,
    )
    text, ending = answer(host.submit(again))
    assert (text, ending.reason) == (whole, FinishReason.STOP)


def test_a_stop_string_still_ends_a_reply(host: EngineHost) -> None:
    text, finish = answer(ask(host, structure={"regex": "[0-9]{3}-[0-9]{4}"}, stop=["-"]))
    assert (len(text), finish.reason) == (3, FinishReason.STOP)
