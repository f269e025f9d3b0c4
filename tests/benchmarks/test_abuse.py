"""The requests of `benchmarks.abuse`: each field of some size has one, and it is within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.gateway.http.protocol.chat import ChatCompletionRequest
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.protocol.messages import MessagesRequest
from app.gateway.http.protocol.payload import Payload, read
from app.gateway.http.protocol.responses import ResponsesRequest
from app.gateway.http.protocol.tokens import DetokenizeRequest, TokenizeRequest
from benchmarks.abuse import CHAT, DETOKENIZE, MESSAGES, RESPONSES, TEXT, TOKENIZE, cases

KINDS: Mapping[str, type[Payload]] = {
    CHAT: ChatCompletionRequest,
    TEXT: CompletionRequest,
    RESPONSES: ResponsesRequest,
    MESSAGES: MessagesRequest,
    TOKENIZE: TokenizeRequest,
    DETOKENIZE: DetokenizeRequest,
}
# Names, and what has parts that are no more than names.
SMALL = {
    "cache_salt",
    *("model", "reasoning_effort", "reasoning", "tool_choice", "stream_options", "thinking"),
    *("previous_response_id", "conversation", "truncation"),
}
# What all that generate have is sent as part of a chat.
SHARED = set(CompletionRequest.model_fields) & set(ChatCompletionRequest.model_fields)


def sized(kind: type[Payload]) -> set[str]:
    """The fields that may be as large as a list, a map or a text is."""
    told = kind.model_json_schema()

    def is_sized(schema: Mapping[str, Any]) -> bool:
        if "$ref" in schema:
            schema = told["$defs"][schema["$ref"].rpartition("/")[2]]
        if any(map(is_sized, schema.get("anyOf", ()))):
            return True
        return schema.get("type") in ("string", "array", "object") and "enum" not in schema

    return {name for name, schema in told["properties"].items() if is_sized(schema)}


@pytest.mark.parametrize("path", KINDS)
def test_each_field_of_some_size_has_a_request(path: str) -> None:
    stated = {name for body in cases()[path].values() for name in body}
    shared = SHARED - {"prompt"} if path == TEXT else set()
    if path == TOKENIZE:
        shared = {"tools", "chat_template_kwargs"}
    assert sized(KINDS[path]) - SMALL - shared <= stated


@pytest.mark.parametrize("path", KINDS)
def test_each_is_within_the_bounds(path: str) -> None:
    for body in cases()[path].values():
        sent = json.dumps(body).encode()
        assert len(sent) <= 1 << 22
        read(KINDS[path], sent)
