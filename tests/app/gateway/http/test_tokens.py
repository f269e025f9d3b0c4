"""/tokenize and /detokenize, on the wire."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import httpx2
import pytest

from engine.api.client import ChatMessage
from tests.support.http_serving import TIMEOUT, HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine, Tokenized

HELLO: list[Any] = [{"role": "user", "content": "hello you"}]


def tokenize(serving: HttpServing, **fields: Any) -> httpx2.Response:
    return serving.http.post("/tokenize", json=fields)


def test_a_text(serving: HttpServing) -> None:
    got = tokenize(serving, prompt="one two one", model="scripted").json()
    snapshot = serving.engine.snapshot()
    assert snapshot is not None
    assert got["max_model_len"] == snapshot.model.max_model_len
    assert (got["count"], len(set(got["tokens"])), got["token_strs"]) == (3, 2, None)
    got = tokenize(serving, prompt="one two", return_token_strs=True).json()
    assert got["token_strs"] == ["one", "two"]
    back = serving.http.post("/detokenize", json={"tokens": got["tokens"]})
    assert back.json() == {"prompt": "one two"}


def test_a_chat_is_what_a_request_of_it_has(serving: HttpServing) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
    fields = {"chat_template_kwargs": {"enable_thinking": False}, "tools": [tool]}
    got = tokenize(serving, messages=HELLO, **fields).json()
    assert serving.ask("hello you").status_code == 200
    (prompt,) = serving.engine.prompts.values()
    assert (tuple(got["tokens"]), got["count"]) == (prompt, len(prompt))
    (asked,) = serving.engine.tokenized
    assert asked == Tokenized(
        (ChatMessage("user", "hello you"),),
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "chat_template_kwargs": {"enable_thinking": False},
        },
        True,
        "anybody",
    )


def test_special_tokens_may_be_left_out(serving: HttpServing) -> None:
    for stated in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        assert tokenize(serving, prompt="one", **stated).status_code == 200
    assert [one.add_special_tokens for one in serving.engine.tokenized] == [True, True, False]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "messages", "messages is missing; a list of messages must be stated, or prompt"),
        ({"prompt": 1}, "prompt", "prompt is 1; it must be text"),
        ({"prompt": "a", "messages": HELLO}, "messages", "left out where prompt is stated"),
        ({"prompt": "a", "tools": []}, "tools", "left out where prompt is stated"),
        ({"messages": HELLO, "add_special_tokens": True}, "add_special_tokens", "false or left"),
        ({"messages": HELLO, "add_generation_prompt": False}, "add_generation_prompt", "true or"),
        (
            {"messages": HELLO, "continue_final_message": True},
            "messages[0].role",
            "must be the assistant's where continue_final_message is true",
        ),
        ({"messages": HELLO, "tools": [{"type": "x"}]}, "tools", "tools[0].type is 'x'"),
    ],
)
def test_what_is_wrong_is_named(
    serving: HttpServing, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = tokenize(serving, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_what_is_no_token_is_refused(serving: HttpServing) -> None:
    for tokens, message in (("a", "a list of token ids"), ([0, "b"], "a list"), ([999], "none")):
        answer = serving.http.post("/detokenize", json={"tokens": tokens})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
        assert message in answer.json()["error"]["message"]


def test_without_a_model_nobody_tokenizes() -> None:
    with http_serving(ScriptedEngine(loaded=False)) as serving:
        assert tokenize(serving, prompt="a").status_code == 503
    with http_serving() as serving:
        assert tokenize(serving, prompt="a", model="b").status_code == 404


def test_it_counts_as_a_request_and_ends_with_its_client() -> None:
    keys = {"ann": {"key": "k", "requests": 1}}
    headers, body = {"x-api-key": "k"}, {"prompt": "a"}
    promise: Future[list[int]] = Future()
    with http_serving(keys=keys) as serving:
        asked = threading.Event()

        def tokenizes(*_: object, **__: object) -> Future[list[int]]:
            asked.set()
            return promise

        serving.engine.tokenize = tokenizes  # type: ignore[method-assign]
        host, port = serving.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), TIMEOUT) as line:
            head = (
                "POST /tokenize HTTP/1.1\r\nHost: x\r\nx-api-key: k\r\nContent-Length: 15\r\n\r\n"
            )
            line.sendall(head.encode() + b'{"prompt": "a"}')
            assert asked.wait(TIMEOUT)
            answer = serving.http.post("/tokenize", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "user_over_quota")
        serving.until(promise.cancelled)
        del serving.engine.tokenize  # type: ignore[attr-defined]
        asking = partial(serving.http.post, "/tokenize", json=body, headers=headers)
        serving.until(lambda: asking().status_code == 200)
