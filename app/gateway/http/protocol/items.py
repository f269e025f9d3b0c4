"""Item: one item of a conversation, in the form of OpenAI's responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from app.gateway.http.protocol.turns import (
    MAX_MESSAGES,
    Parts,
    Piece,
    joined,
    parts_allowed,
)
from app.gateway.stated import CALLED_WITH, NO_ARGUMENTS, CalledWith, Id, LongText, Name
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.tools import ToolCall

_TYPES = ("message", "function_call", "function_call_output", "reasoning")


class Item(Piece):
    """A message, the model's thinking, a function call, or its result.

    Attributes:
        type: `message` by default.
        role, content: of a message; developer means system. For thinking, the content is parts of
            type `reasoning_text`.
        summary: of thinking without content.
        call_id, name, arguments: of a call; the arguments are a JSON object, as text.
        output: the result of the call named by `call_id`.
    """

    type: Name = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: LongText | Parts | None = None
    summary: Parts = ()
    call_id: Id | None = None
    name: Name | None = None
    arguments: CalledWith = NO_ARGUMENTS
    output: LongText | Parts | None = None


# The allowed values of each field of the input, by path.
ITEMS_ALLOWED: dict[str, str] = {
    **parts_allowed("input.*.content"),
    **parts_allowed("input.*.output"),
    "input": f"text or a list of 1 to {MAX_MESSAGES} items",
    "input.*": "an object with type",
    "input.*.type": f"one of {', '.join(_TYPES)}",
    "input.*.role": "one of system, developer, user, assistant",
    "input.*.content": "text or a list of parts",
    "input.*.summary": "a list of parts",
    "input.*.call_id": "text",
    "input.*.name": "text",
    "input.*.arguments": CALLED_WITH,
    "input.*.output": "text or a list of parts",
}
Items = Annotated[tuple[Item, ...], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


def messages_of(items: Sequence[Item]) -> list[ChatMessage]:
    """The messages of a conversation in the engine's form. Consecutive thinking, text and calls of
    the model are one message.

    Raises:
        InvalidRequestError: an item is not served, or lacks a field.
    """
    messages: list[ChatMessage] = []
    reply: ChatMessage | None = None
    called: dict[str, str] = {}
    for number, item in enumerate(items):
        at = f"input[{number}]"
        if item.type not in _TYPES:
            raise _wrong(f"{at}.type", repr(item.type))
        if item.type == "function_call":
            call = _call(item, at)
            called[call.id or ""] = call.name
            reply = reply or ChatMessage("assistant", "")
            reply = _with(reply, calls=(call,))
        elif item.type == "reasoning":
            if reply is not None:
                messages.append(reply)
            reply = ChatMessage("assistant", "", _thinking(item))
        elif item.type == "message" and item.role == "assistant":
            if reply is not None and (reply.content or reply.tool_calls):
                messages.append(reply)
                reply = None
            reply = _with(reply or ChatMessage("assistant", ""), _content(item, at))
        else:
            if reply is not None:
                messages.append(reply)
                reply = None
            messages.append(_asking(item, at, called))
    return messages if reply is None else [*messages, reply]


def _asking(item: Item, at: str, called: dict[str, str]) -> ChatMessage:
    """A message that is not the model's."""
    if item.type == "message":
        if item.role is None:
            raise _wrong(f"{at}.role", "missing")
        role = "system" if item.role == "developer" else item.role
        return ChatMessage(role, _content(item, at))
    for name in ("call_id", "output"):
        if getattr(item, name) is None:
            raise _wrong(f"{at}.{name}", "missing")
    name = item.call_id or ""
    text = joined(item.output or "", f"{at}.output")
    return ChatMessage("tool", text, tool_call_id=name, name=called.get(name, ""))


def _content(item: Item, at: str) -> str:
    if item.content is None:
        raise _wrong(f"{at}.content", "missing")
    return joined(item.content, f"{at}.content")


def _call(item: Item, at: str) -> ToolCall:
    for name in ("call_id", "name"):
        if getattr(item, name) is None:
            raise _wrong(f"{at}.{name}", "missing")
    return ToolCall(item.name or "", item.arguments, item.call_id)


def _thinking(item: Item) -> str:
    content = item.content or item.summary
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content)


def _with(reply: ChatMessage, text: str = "", calls: tuple[ToolCall, ...] = ()) -> ChatMessage:
    return ChatMessage(
        reply.role, reply.content + text, reply.thinking, tool_calls=reply.tool_calls + calls
    )


def _wrong(path: str, what: str) -> InvalidRequestError:
    allowed = ITEMS_ALLOWED["input.*." + path.rpartition(".")[2]]
    return InvalidRequestError(f"{path} is {what}; it must be {allowed}", path)
