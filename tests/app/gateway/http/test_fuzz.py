"""Whatever is sent, there is one answer, never a mistake of ours, and nothing is left of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.gateway.http.protocol.batches import BatchRequest
from app.gateway.http.protocol.chat import ChatCompletionRequest
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.protocol.messages import MessageCountRequest, MessagesRequest
from app.gateway.http.protocol.responses import ResponsesRequest
from app.gateway.http.protocol.tokens import DetokenizeRequest, TokenizeRequest
from tests.support.http_serving import HttpServing, http_serving

KINDS = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": MessageCountRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/batches": BatchRequest,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
GOOD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "prompt": "hello",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    "tokens": [0],
    "n": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "max_tokens": 2,
    "max_output_tokens": 2,
    "logprobs": 1,
    "stop": ["x"],
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "input_file_id": "file-none",
    "endpoint": "/v1/completions",
    "completion_window": "24h",
}
# What the last event of a stream has, and what an answer has that is none.
ENDS = {"/v1/messages": "event: message_stop", "/v1/responses": "event: response."}
WHOLE = {
    "/v1/messages": "stop_reason",
    "/v1/messages/count_tokens": "input_tokens",
    "/v1/responses": "output",
    "/tokenize": "tokens",
    "/detokenize": "prompt",
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path and what is sent to it: mostly fields that are known, some of them with any value."""
    path = draw(st.sampled_from(sorted(KINDS)))
    if draw(st.integers(0, 9)) == 0:
        return path, draw(st.binary(max_size=60))
    known = sorted(KINDS[path].model_fields)
    names = draw(st.lists(st.sampled_from(known) | st.text(max_size=8), max_size=5, unique=True))
    needed = (
        *("messages", "input", "tokens", "max_tokens", "prompt"),
        *("input_file_id", "endpoint", "completion_window"),
    )
    body = {name: GOOD[name] for name in needed if name in known}
    if path == "/tokenize" and draw(st.booleans()):
        del body["prompt"]
    for name in names:
        is_good = name in GOOD and draw(st.booleans())
        body[name] = GOOD[name] if is_good else draw(JSON)
    return path, json.dumps(body).encode()


def check(serving: HttpServing, path: str, body: bytes) -> None:
    answer = serving.http.post(path, content=body)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"]
        assert error["type"] in ("invalid_request_error", "not_found_error")
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert ENDS.get(path, "data: [DONE]") in answer.text.split("\n\n")[-2]
    else:
        assert WHOLE.get(path, "choices") in answer.json()


FEW = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize(
    "examples", [200, pytest.param(100_000, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_whatever_is_sent_has_one_answer(examples: int) -> None:
    with http_serving() as serving, serving.running():

        @settings(max_examples=examples, **FEW)
        @given(bodies())
        def run(sent: tuple[str, bytes]) -> None:
            check(serving, *sent)

        run()
        serving.until(lambda: len(serving.gateway._exchanges) == 0)
        view = serving.gateway.view
        serving.until(lambda: view().finished == view().accepted)


def test_the_document_tells_of_each_address(serving: HttpServing) -> None:
    document = serving.http.get("/openapi.json").json()
    for path, kind in KINDS.items():
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert body["schema"] == {"$ref": f"#/components/schemas/{kind.__name__}"}
        fields = document["components"]["schemas"][kind.__name__]["properties"]
        assert set(fields) == set(kind.model_fields)
    assert "get" in document["paths"]["/v1/models/{name}"]
    assert {*document["paths"]["/v1/files"]} == {"get", "post"}
    assert {one["name"] for one in document["paths"]["/v1/files"]["get"]["parameters"]} == {
        *("after", "limit", "order", "purpose")
    }
    form = document["paths"]["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]
    fields = document["components"]["schemas"][form["schema"]["$ref"].rpartition("/")[2]]
    assert fields["properties"]["file"]["format"] == "binary"
    assert fields["required"] == ["file", "purpose"]
