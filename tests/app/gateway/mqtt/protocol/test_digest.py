"""The digest of a request: the same when it is sent again, another for any other."""

from __future__ import annotations

from typing import Any

import pytest

from app.gateway.mqtt.protocol.requests import ChatRequest
from tests.support.chat_requests import FULL, HI, parse

CHANGED: dict[str, Any] = {
    "request_id": None,
    "session_id": "s",
    "model": "other",
    "messages": [*FULL["messages"][:-1], {"role": "user", "content": "d"}],
    "max_tokens": 255,
    "temperature": 0.5,
    "top_p": None,
    "top_k": 41,
    "min_p": 0.051,
    "repetition_penalty": 1.2,
    "presence_penalty": -1,
    "frequency_penalty": 1,
    "logit_bias": {"262": -100, "8": 1.5},
    "seed": 0,
    "min_tokens": 1,
    "stop": ["\n\n"],
    "chat_template_kwargs": {"enable_thinking": True},
    "tools": [{"type": "function", "function": {"name": "g"}}],
    "structure": {"regex": "a"},
    "logprobs": False,
    "top_logprobs": None,
    "prompt_logprobs": None,
    "stop_token_ids": [],
    "ignore_eos": None,
    "stream": True,
    "accepted": True,
    "delta_qos": 0,
    "deadline_ms": 1,
    "cache_salt": None,
    "priority": 0,
}


@pytest.mark.parametrize("name", CHANGED)
def test_another_request_has_another_digest(name: str) -> None:
    before = FULL | {"messages": HI} if name == "session_id" else FULL
    before = before | {"top_logprobs": None} if name == "logprobs" else before
    assert parse(**before).digest() != parse(**before | {name: CHANGED[name]}).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": []},
        {"reasoning_content": "y"},
        {"content": None, "tool_calls": [{"function": {"name": "g", "arguments": "{}"}}]},
    ],
)
def test_what_a_message_calls_counts(changes: dict[str, object]) -> None:
    called: dict[str, object] = {"role": "assistant", "content": "x"}
    before = parse(messages=[*HI, called, *HI])
    assert parse(messages=[*HI, called | changes, *HI]).digest() != before.digest()
    outcomes = [{"role": "tool", "content": "x"}, {"role": "tool", "content": "x", "name": "f"}]
    chats = ([*HI, called, outcome] for outcome in outcomes)
    assert len({parse(messages=chat).digest() for chat in chats}) == 2


def test_a_request_without_later_fields_keeps_the_digest_of_before_there_were_any() -> None:
    # As it stood in the journal of an earlier version.
    before = "bd84f8adfa44d4d81de7676847a3d382f6300c4440ca9a2bad859e4181295387"
    assert parse().digest() == before


LATER = ("logprobs", "top_logprobs", "prompt_logprobs", "stop_token_ids", "ignore_eos")


@pytest.mark.parametrize(
    ("fields", "before"),
    [
        (
            {name: value for name, value in FULL.items() if name not in LATER},
            "59ff9d1be7fc806b16f02871c3ea8574ee5a999c8c601a669058d6dcebe22050",
        ),
        (
            {"stop": "END", "cache_salt": "a", "seed": -1, "tools": []},
            "9a3c6d3ebe62d2cc445f5a12ec25396b27c4b554d384c69c897f05e659908a67",
        ),
        (
            {
                "messages": [
                    *HI,
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
                    {"role": "tool", "content": "x", "name": "f"},
                ]
            },
            "8e9a11ef256b2564218a65a91c77e885b6453587f7d1e794b58b5ad26d25cfc2",
        ),
    ],
    ids=["full", "some", "calls"],
)
def test_digests_in_journals_still_match(fields: dict[str, Any], before: str) -> None:
    assert parse(**fields).digest() == before


def test_whatever_counts_is_in_the_digest() -> None:
    assert {*CHANGED, "v", "sent_at"} == set(ChatRequest.model_fields)
