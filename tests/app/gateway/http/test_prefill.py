"""Replies that are gone on with: the last message is the assistant's."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from engine.api.client import ChatMessage
from tests.support.http_serving import HttpServing

CHAT: list[Any] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "You said:"},
]


@pytest.mark.parametrize("is_stream", [False, True])
def test_of_messages(serving: HttpServing, is_stream: bool) -> None:
    client = anthropic.Anthropic(base_url=serving.url, api_key="any", max_retries=0)
    asked: Any = {"model": "scripted", "max_tokens": 50, "messages": CHAT}
    with serving.running():
        if is_stream:
            with client.messages.stream(**asked) as stream:
                got = stream.get_final_message()
        else:
            got = client.messages.create(**asked)
    assert [one.text for one in got.content if one.type == "text"] == [" hello"]
    (submission,) = serving.engine.submissions
    assert (submission.num_partial, submission.messages[-1]) == (
        0,
        ChatMessage("assistant", "You said:"),
    )
    prompt = len(serving.engine.prompts[submission.request_id])
    usage = got.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == prompt
    assert usage.output_tokens == 1
    seen = serving.gateway.transcript(submission.request_id)
    assert seen is not None
    assert [(one.role, one.content) for one in seen.messages] == [
        ("user", "hello"),
        ("assistant", "You said: hello"),
    ]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize(("echo", "text"), [(False, " hello"), (True, "You said: hello")])
def test_of_chats(serving: HttpServing, is_stream: bool, tools: Any, echo: bool, text: str) -> None:
    client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="any", max_retries=0)
    asked: Any = {
        "model": "scripted",
        "messages": CHAT,
        "extra_body": {
            "continue_final_message": True,
            "add_generation_prompt": False,
            "echo": echo,
            "tools": tools,
        },
    }
    with serving.running():
        if is_stream:
            chunks = client.chat.completions.create(**asked, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
            assert "".join(pieces) == text
        else:
            whole = client.chat.completions.create(**asked)
            assert whole.choices[0].message.content == text
            (prompt,) = serving.engine.prompts.values()
            assert whole.usage is not None
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), 1)


def test_its_tokens_are_counted(serving: HttpServing) -> None:
    chat = (ChatMessage("user", "hello"), ChatMessage("assistant", "You said:"))
    for path, body in (
        ("/tokenize", {"messages": CHAT, "continue_final_message": True}),
        ("/v1/messages/count_tokens", {"messages": CHAT}),
    ):
        assert serving.http.post(path, json=body).status_code == 200
    assert [one.prompt for one in serving.engine.tokenized] == [chat, chat]


CALLED = {
    "role": "assistant",
    "content": "So",
    "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/chat/completions",
            {"messages": CHAT[:1], "continue_final_message": True},
            "messages[0].role is 'user'; the last message must be the assistant's where",
        ),
        (
            "/v1/chat/completions",
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt is true; it must be false or left out where",
        ),
        (
            "/v1/chat/completions",
            {"messages": CHAT[:1], "add_generation_prompt": False},
            "add_generation_prompt is false; it must be true or left out where",
        ),
        (
            "/v1/chat/completions",
            {"messages": [CHAT[0], CALLED], "continue_final_message": True},
            "messages[1].tool_calls has tool calls; a message to continue must have",
        ),
        (
            "/v1/chat/completions",
            {"continue_final_message": True, "tools": [FUNCTION], "tool_choice": "required"},
            "tool_choice is 'required'; it must be none or auto where continue_final_message",
        ),
        (
            "/v1/messages",
            {"messages": [CHAT[0], USED]},
            "messages[1].content has tool calls; a message to continue must have",
        ),
        (
            "/v1/messages",
            {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}},
            "tool_choice.type is 'any'; it must be none or auto where the last message is the",
        ),
    ],
)
def test_what_is_wrong_is_named(
    serving: HttpServing, path: str, fields: dict[str, Any], message: str
) -> None:
    answer = serving.http.post(path, json={"messages": CHAT, "max_tokens": 5, **fields})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert serving.engine.submissions == []
