"""Calls: the tool calls of a reply, read in the format that its tokenizer states.

What reads them are expressions that come with the model, run on what it wrote. They may never
return, so all but `states_calls` is for the processes of `engine.text.pool`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.api.tools import ToolCall, ToolUse
from engine.text.openings import CALLS

_CONTENT = "content"
# Characters that are given to transformers at once, as if they streamed. It searches all that it
# has for the next mark, again after each: 35,000 characters with 20 calls took 317 ms at once, and
# 4 ms like this (CPU time, on two busy cores).
_PIECE = 1024


def read_calls(
    tokenizer: Any,
    prompt: Sequence[int],
    reply: Sequence[int],
    tools: Sequence[Mapping[str, object]],
) -> ToolUse | None:
    """The tool calls of a reply; None if it makes none.

    Args:
        tokenizer: of transformers, with a response template.
        prompt: the end of the prompt, because the template may have begun the reply.
        reply: the token ids of the whole reply.
        tools: what the request stated; they say of which types the arguments are.

    Raises:
        Exception: the reply cannot be read, or what is found are no calls.
    """
    parser = tokenizer.get_response_parser(prefix=_text(tokenizer, prompt), tools=list(tools))
    if any(event["field"] == CALLS for event in parser.initial_events):
        # Where the beginning of the reply is not found, all of the prompt is taken for a part of
        # it, and what its messages quote would be called.
        raise ValueError("the prompt has tool calls in it")
    text = _text(tokenizer, reply)
    events: list[dict[str, Any]] = []
    try:
        for start in range(0, len(text), _PIECE):
            events += parser.feed(text[start : start + _PIECE])
        message, last = parser.finalize()
    except ValueError as error:
        # Below its first line it quotes the reply, which is nothing for a log.
        raise ValueError(str(error).partition("\n")[0]) from None
    calls = message.get(CALLS)
    if calls is None:
        return None
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls is of type {type(calls).__name__}, not a list")
    said = [message.get(_CONTENT, "")]
    values = [
        event["value"]
        for event in (*events, *last)
        if event["type"] == "region_close" and event["field"] == _CONTENT
    ]
    if values and said[0] in ("", values[-1]):
        # Of several, such as before and behind the calls, the message has the last one only.
        said = [value for value in values if value]
    shown = _text(tokenizer, reply, shown=True)
    if not all(isinstance(one, str) and one in shown for one in said):
        raise ValueError("the content beside the tool calls is none of the reply's text")
    return ToolUse(tuple(map(_call, calls)), "\n\n".join(said))


def _text(tokenizer: Any, token_ids: Sequence[int], *, shown: bool = False) -> str:
    """The text of token ids, with special tokens unless it is what is shown."""
    text: str = tokenizer.decode(
        list(token_ids), skip_special_tokens=shown, clean_up_tokenization_spaces=False
    )
    return text


def _call(entry: object) -> ToolCall:
    """
    Raises:
        ValueError: it is no call of a function with a map of arguments.
    """
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(function, dict):
        raise ValueError("an entry of tool_calls has no function")
    name, arguments, call_id = function.get("name"), function.get("arguments"), entry.get("id")
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call has no name")
    told = json.loads(arguments) if isinstance(arguments, str) else arguments
    if told is None:
        told = {}
    if not isinstance(told, dict):
        raise ValueError(f"the arguments of a tool call are of type {type(told).__name__}")
    call = ToolCall(
        name,
        json.dumps(told, ensure_ascii=False, allow_nan=False),
        call_id if isinstance(call_id, str) and call_id else None,
    )
    # JSON can spell half a surrogate pair, which is no text and can be told to nobody.
    f"{call.name}{call.arguments}{call.id}".encode()
    return call
