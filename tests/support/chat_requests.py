"""Chat requests as a client sends them: the least, the fullest, and what is said of a bad one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.gateway.faults import Fault
from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import Caller

CALLER = Caller("default", "alice", "phone", "r1")


HI = [{"role": "user", "content": "hi"}]


def parse(**fields: Any) -> ChatRequest:
    return parse_request(json.dumps({"messages": HI, **fields}).encode(), CALLER)


def refused(payload: bytes) -> Fault:
    with pytest.raises(Fault) as told:
        parse_request(payload, CALLER)
    return told.value


FULL: dict[str, Any] = {
    "v": 1,
    "request_id": "r1",
    "session_id": None,
    "model": "builtin",
    "messages": [
        {"role": "system", "content": ""},
        {"role": "user", "content": "a\u0000é😀"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ],
    "stream": False,
    "accepted": False,
    "delta_qos": 1,
    "deadline_ms": 86_400_000,
    "cache_salt": "é",
    "priority": -1_000_000,
    "sent_at": 1_700_000_000.25,
    "logprobs": True,
    "top_logprobs": 3,
    "prompt_logprobs": 0,
    "temperature": 1,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": -2,
    "frequency_penalty": 2.0,
    "logit_bias": {"262": -100, "7": 1.5},
    "seed": 2**64 - 1,
    "min_tokens": 2,
    "max_tokens": 256,
    "stop": ["\n\n", "END"],
    "stop_token_ids": [7],
    "ignore_eos": False,
    "chat_template_kwargs": {"enable_thinking": False, "documents": [{"text": "f"}]},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "structure": {"json_schema": {"type": "object", "properties": {"a": {"enum": [1, None]}}}},
}


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": HI, **fields}).encode()
