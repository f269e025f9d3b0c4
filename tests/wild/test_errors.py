"""Errors by which clients act: codes and words that they match, in each interface."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.http_serving import HttpServing, http_serving

LONG = "word " * 3000
HI = [{"role": "user", "content": "hi"}]
# What clients look for: opencode, Claude Code and oh-my-pi by words, Codex and others by the code.
WORDS = (
    r"prompt is too long: \d+ tokens > \d+",
    r"maximum context length is \d+ tokens",
)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("report", "path", "asked", "param"),
    [
        (
            "anomalyco/opencode#8089",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": LONG}]},
            "messages",
        ),
        ("", "/v1/completions", {"prompt": LONG}, "prompt"),
        ("", "/v1/completions", {"prompt": [5] * 3000}, "prompt"),
        ("openai/codex#20866", "/v1/responses", {"input": LONG}, "input"),
        (
            "jundot/omlx#26",
            "/v1/messages",
            {"max_tokens": 9, "messages": [{"role": "user", "content": LONG}]},
            None,
        ),
    ],
)
def test_a_full_context_is_known(
    serving: HttpServing, report: str, path: str, asked: Any, param: str | None, is_stream: bool
) -> None:
    answer = serving.http.post(path, json=asked | {"stream": is_stream})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert all(re.search(words, error["message"]) for words in WORDS)
    if param is not None:
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_another_model_and_a_wrong_key_have_openais_codes(path: str, asked: Any) -> None:
    with http_serving(api_key="sk-one") as serving:
        for key, status, code in (
            ({}, 401, "invalid_api_key"),
            ({"Authorization": "Bearer sk-two"}, 401, "invalid_api_key"),
            ({"x-api-key": "sk-one"}, 404, "model_not_found"),
        ):
            answer = serving.http.post(path, json=asked | {"model": "gpt-9"}, headers=key)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
