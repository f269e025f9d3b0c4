"""/v1/chat/completions, as OpenAI's own client sees it and on the wire."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SYSTEM: Any = {"role": "system", "content": "Be brief."}


@pytest.fixture
def client(serving: HttpServing) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0)


def test_a_whole_reply(serving: HttpServing, client: openai.OpenAI) -> None:
    with serving.running():
        got = client.chat.completions.create(model="scripted", messages=HELLO)
    assert (got.object, got.model) == ("chat.completion", "scripted")
    (choice,) = got.choices
    assert (choice.message.role, choice.message.content) == (
        "assistant",
        "You said: hello",
    )
    assert choice.finish_reason == "stop"
    assert got.usage is not None
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens
    (asked,) = serving.engine.submissions
    assert (asked.origin.source, asked.origin.user, asked.origin.title) == (
        "http",
        "anybody",
        "hello",
    )
    assert got.id == f"chatcmpl-{asked.request_id}"


def test_a_stream_is_the_whole_reply_in_pieces(serving: HttpServing, client: openai.OpenAI) -> None:
    with serving.running():
        chunks = list(
            client.chat.completions.create(
                model="scripted",
                messages=HELLO,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    *pieces, last = chunks
    assert "".join(one.choices[0].delta.content or "" for one in pieces) == "You said: hello"
    assert pieces[0].choices[0].delta.role == "assistant"
    assert [one.choices[0].finish_reason for one in pieces if one.choices[0].finish_reason] == [
        "stop"
    ]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    assert {one.id for one in chunks} == {last.id}


def test_the_wire_of_a_stream(serving: HttpServing) -> None:
    answer = serving.ask("hello", stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        assert json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk"
        assert "usage" not in event


def test_several_replies_share_one_prompt(serving: HttpServing, client: openai.OpenAI) -> None:
    with serving.running():
        got = client.chat.completions.create(model="scripted", messages=HELLO, n=3, seed=2**64 - 1)
    assert [(one.index, one.message.content) for one in got.choices] == [
        (n, "You said: hello") for n in range(3)
    ]
    first, *others = serving.engine.submissions
    assert {one.fork_of for one in others} == {first.request_id}
    assert [one.sampling["seed"] for one in serving.engine.submissions] == [2**64 - 1, 0, 1]
    assert got.usage is not None
    prompt = len(serving.engine.prompts[first.request_id])
    assert got.usage.prompt_tokens == prompt


def test_what_is_asked_reaches_the_engine(serving: HttpServing) -> None:
    fields = {
        "max_tokens": 9,
        "max_completion_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1,
        "frequency_penalty": 0.5,
        "logit_bias": {"5": 2},
        "seed": 7,
        "stop": "zz",
        "stop_token_ids": [4],
        "min_tokens": 1,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
        "priority": 3,
    }
    assert serving.ask(**fields).status_code == 200
    (asked,) = serving.engine.submissions
    assert asked.sampling == {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 0,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1,
        "frequency_penalty": 0.5,
        "logit_bias": {"5": 2},
        "seed": 7,
        "stop": ("zz",),
        "stop_token_ids": (4,),
        "min_tokens": 1,
        "ignore_eos": True,
        "logprobs": 2,
        "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"},
    }
    assert asked.priority == -3


def test_thinking_has_a_field_of_its_own() -> None:
    with http_serving(ScriptedEngine(lambda _: "<think>hm</think>yes")) as serving:
        message = serving.ask().json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
        hidden = serving.ask(include_reasoning=False).json()["choices"][0]["message"]
        assert "reasoning_content" not in hidden
        assert hidden["content"] == "yes"
        stream = serving.ask(stream=True).text
        deltas = [
            json.loads(line[6:])["choices"][0]["delta"]
            for line in stream.splitlines()
            if line.startswith("data: {")
        ]
        assert "".join(one.get("reasoning_content", "") for one in deltas) == "hm"
        assert "".join(one.get("content", "") for one in deltas) == "yes"


def test_what_has_no_effect_is_named(serving: HttpServing) -> None:
    answer = serving.ask(store=True, metadata={}, service_tier="auto")
    assert answer.status_code == 200
    assert answer.headers["x-batchdeck-ignored"] == "store, metadata, service_tier"
    odd = serving.ask(**{"größe\n": 1, "x" * 99: 2})
    assert odd.headers["x-batchdeck-ignored"].startswith("'gr\\xf6\\xdfe\\\\n', 'xxx")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": None}, "messages", "messages is null; it must be a list"),
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content",
            "is missing; it must be text or a list of parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            "models are served for text only",
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "x"}]},
            "messages[1].role",
            "the user's or a tool's, or the assistant's where continue_final_message is true",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x"}, SYSTEM]},
            "messages[0].role",
            "the last message must be the user's or a tool's",
        ),
        ({"messages": [SYSTEM]}, "messages[0].role", "is 'system'; the last message must be"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'; it must be a number"),
        ({"stop": [""]}, "stop", "non-empty"),
        ({"top_logprobs": 2}, "logprobs", "it must be true where top_logprobs is stated"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'xml'"),
        ({"tools": [{"type": "x"}]}, "tools", "tools[0].type"),
    ],
)
def test_what_is_wrong_is_named(
    serving: HttpServing, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = serving.http.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert message in error["message"]
    assert serving.engine.submissions == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"messages": [{"role": "user", "content": "x " * 3000}]},
            "messages",
            "the prompt is too long: 3",
        ),
        (
            {"messages": HELLO, "max_tokens": 1022},
            "max_tokens",
            "max_tokens is 1022; with a prompt of",
        ),
    ],
)
def test_what_does_not_fit_is_known_to_clients_that_shorten_their_chats(
    serving: HttpServing, fields: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    """By OpenAI's code, and by words that coding assistants look for, in a stream, too."""
    answer = serving.http.post("/v1/chat/completions", json={**fields, "stream": stream})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["code"], error["param"]) == (
        *("invalid_request_error", "context_length_exceeded", param),
    )
    assert error["message"].startswith(words)
    assert re.search(r"maximum context length is \d+ tokens", error["message"])


def test_what_fits_no_chat_is_no_reason_to_shorten_one(serving: HttpServing) -> None:
    """Coding assistants shortened a chat again and again, and each time in vain."""
    fields = {"messages": HELLO, "max_tokens": 10**6}
    error = serving.http.post("/v1/chat/completions", json=fields).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", "max_tokens")
    assert error["message"].startswith("max_tokens is 1000000; with a prompt of")
    assert error["message"].endswith("are allowed, and with any other 1023")
    assert "context" not in error["message"]


def test_another_model_is_not_found(serving: HttpServing, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'scripted' is the one that is served here"):
        client.chat.completions.create(model="gpt-4o", messages=HELLO)
    with http_serving(names=["gpt-4o"]) as other:
        assert other.ask(model="gpt-4o").json()["model"] == "gpt-4o"
        assert other.ask(model="gpt-5").status_code == 404
    with http_serving(names=["*"]) as other:
        assert other.ask(model="anything").status_code == 200
