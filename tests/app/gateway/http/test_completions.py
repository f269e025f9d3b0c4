"""/v1/completions: prompts around which no template is put."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.support.http_serving import HttpServing


def complete(serving: HttpServing, **fields: Any) -> Any:
    with serving.running():
        return serving.http.post("/v1/completions", json=fields)


def test_openais_client_gets_the_text(serving: HttpServing) -> None:
    client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0)
    with serving.running():
        got = client.completions.create(model="scripted", prompt="Once upon", echo=True)
    assert got.choices[0].text == "Once uponAnd then: Once upon"
    assert got.choices[0].finish_reason == "stop"
    (asked,) = serving.engine.submissions
    assert (asked.prompt, asked.messages) == ("Once upon", ())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ([7, 8], [(7, 8)]),
        (["a", "b"], ["a", "b"]),
        ([[7], [8, 9]], [(7,), (8, 9)]),
    ],
)
def test_each_prompt_has_its_replies(
    serving: HttpServing, prompt: list[Any], prompts: list[Any]
) -> None:
    got = complete(serving, prompt=prompt, n=2).json()
    assert [one.prompt for one in serving.engine.submissions] == [p for p in prompts for _ in "12"]
    assert [choice["index"] for choice in got["choices"]] == list(range(2 * len(prompts)))
    ids = [one.request_id for one in serving.engine.submissions]
    assert [one.fork_of for one in serving.engine.submissions] == [
        parent for first in ids[::2] for parent in (None, first)
    ]
    usage = got["usage"]
    assert usage["prompt_tokens"] == sum(map(len, serving.engine.prompts.values())) // 2


def test_a_stream_has_the_same_text(serving: HttpServing) -> None:
    stream = complete(serving, prompt="Once", stream=True, stream_options={"include_usage": True})
    events = [
        json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")
    ]
    *pieces, usage = events
    assert "".join(one["choices"][0]["text"] for one in pieces) == "And then: Once"
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["prompt_tokens"]) == ([], 1)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "prompt", "is missing; it must be text, a list of token ids"),
        ({"prompt": []}, "prompt", "it must be text, a list of token ids"),
        ({"prompt": [1, "a"]}, "prompt", "it must be text, a list of token ids"),
        ({"prompt": "a", "best_of": 3}, "best_of", "best_of is 3; it must be n, 1, or left out"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "it must be empty or left out"),
        ({"prompt": [1], "echo": True}, "echo", "false where the prompt is token ids"),
        (
            {"prompt": "a", "prompt_logprobs": 1, "stream": True},
            "prompt_logprobs",
            "it must be left out where stream is true",
        ),
        ({"prompt": ["a", "b"], "n": 128}, "n", "at most 128 replies of 2 prompts"),
        ({"prompt": "x " * 3000}, "prompt", "the prompt is too long: 3"),
    ],
)
def test_what_is_wrong_is_named(
    serving: HttpServing, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = serving.http.post("/v1/completions", json=fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
