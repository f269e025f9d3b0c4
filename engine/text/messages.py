"""Messages: validates a chat, and converts it for a template."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, NamedTuple

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.tools import ToolCall
from engine.text.arguments import map_texts
from engine.text.thinking import FIELDS

ROLES = ("system", "user", "assistant", "tool")
ASKING = ("user", "tool")
# Texts that end a reply without a chat template, where the model would write the next message.
LINE_STOPS = tuple(f"\n{role}:" for role in ROLES)
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_NAMED = re.compile(r"functions\.[\w.-]+:\d+")


class Ids(Enum):
    """The call ids that a template accepts."""

    ANY = auto()
    NINE = auto()  # nine letters and digits, as Mistral's
    NAMED = auto()  # `functions.NAME:0`, which Kimi's writes in place of the name


class CallShape(NamedTuple):
    """The shape in which a template accepts messages that call tools.

    Attributes:
        ids: ids that it accepts.
        in_text: whether the arguments are JSON text.
        writes: whether it writes calls at all; if not, they become part of the content.
        writes_beside: whether it writes the calls of a message that has content, too; if not, such
            a message becomes two.
    """

    ids: Ids = Ids.ANY
    in_text: bool = False
    writes: bool = True
    writes_beside: bool = True


def reply(content: str) -> ChatMessage:
    return ChatMessage("assistant", content)


def in_template_form(message: ChatMessage, *, in_parts: bool, shape: CallShape) -> dict[str, Any]:
    """Convert a message for the template: its text, its thinking under each of the names that
    templates use, and its tool calls.

    Args:
        in_parts: whether the text is one part of a list.
    """
    text = message.content
    given: dict[str, Any] = {
        "role": message.role,
        "content": [{"type": "text", "text": text}] if in_parts else text,
    }
    if message.thinking:
        given |= dict.fromkeys(FIELDS, message.thinking)
    if message.tool_calls:
        given["tool_calls"] = [_call_in_template_form(call, shape) for call in message.tool_calls]
    if message.tool_call_id:
        given["tool_call_id"] = message.tool_call_id
    if message.name:
        given["name"] = message.name
    return given


def in_lines(messages: Sequence[ChatMessage]) -> str:
    """Render a chat as text for a model without a chat template to complete: a line `role: content`
    for each message, and the beginning of the reply's.
    """
    return "".join(f"{message.role}: {message.content}\n" for message in messages) + "assistant:"


def fold_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Move the text of a chat's system messages to the start of its first user message."""
    head = "".join(f"{m.content}\n\n" for m in messages if m.role == "system")
    folded = []
    for message in messages:
        if message.role == "user":
            message, head = ChatMessage("user", head + message.content), ""
        if message.role != "system":
            folded.append(message)
    return folded


def changed(
    message: ChatMessage,
    change: Callable[[str], str],
    change_name: Callable[[str], str] | None = None,
) -> ChatMessage:
    """Change all texts of a message that anybody may have written.

    Args:
        change_name: for names and ids, which templates look up and check; defaults to `change`.
    """
    rename = change_name or change
    return replace(
        message,
        content=change(message.content),
        thinking=change(message.thinking) if message.thinking else "",
        tool_calls=tuple(_changed_call(call, change, rename) for call in message.tool_calls),
        tool_call_id=rename(message.tool_call_id) if message.tool_call_id else "",
        name=rename(message.name) if message.name else "",
    )


def check(messages: Sequence[ChatMessage]) -> None:
    """Raises:
    InvalidRequestError: they are not a chat that can be answered.
    """
    if not messages:
        raise InvalidRequestError(
            "messages is empty; a chat needs at least one message from the user", "messages"
        )
    for i, message in enumerate(messages):
        _check_message(f"messages[{i}]", message)
    at = asking(messages)
    last = messages[at]
    if last.role not in ASKING:
        raise InvalidRequestError(
            f"messages[{at}].role is {last.role!r}; "
            "the last message must be from the user or a tool, apart from system messages",
            "messages",
        )
    if last.role == "user" and not last.content.strip():
        raise InvalidRequestError(
            "prompt is empty; the last message must have at least one character that is not blank",
            "prompt",
        )


def asking(messages: Sequence[ChatMessage]) -> int:
    """The index of the message to answer: the last one that is not a system message, which may add
    to a question; the last one if all are.
    """
    numbers = [number for number, message in enumerate(messages) if message.role != "system"]
    return numbers[-1] if numbers else len(messages) - 1


def _check_message(place: str, message: ChatMessage) -> None:
    if message.role not in ROLES:
        raise InvalidRequestError(
            f"{place}.role is {message.role!r}; it must be one of {', '.join(ROLES)}", "messages"
        )
    if not isinstance(message.content, str):
        raise InvalidRequestError(
            f"{place}.content is of type {type(message.content).__name__}; it must be text",
            "messages",
        )
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequestError(
            f"{place}.tool_calls is stated for the role {message.role!r}; only the assistant calls",
            "messages",
        )
    for j, call in enumerate(message.tool_calls):
        _check_text(f"{place}.tool_calls[{j}].id", call.id or "")
        _check_text(f"{place}.tool_calls[{j}].function.name", call.name)
        written = json.dumps(call.values(), ensure_ascii=False)
        _check_text(f"{place}.tool_calls[{j}].function.arguments", written)
    _check_text(f"{place}.content", message.content)
    _check_text(f"{place}.tool_call_id", message.tool_call_id)
    _check_text(f"{place}.name", message.name)


def _check_text(place: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{place} has the surrogate U+{ord(text[error.start]):X} "
            f"at character {error.start}; it must be valid Unicode text",
            "messages",
        ) from None


def with_ids(messages: Sequence[ChatMessage], ids: Ids) -> Sequence[ChatMessage]:
    """Replace call ids by ids that the template accepts, in calls and results.

    Clients send the ids that they got from any server. A result without an id belongs to the first
    call that has no result yet.
    """
    fitting: dict[str, str] = {}
    named, waiting, number = [], list[str](), 0
    for message in messages:
        calls = []
        for call in message.tool_calls:
            made = _fitting(call, number, ids)
            if call.id:
                made = fitting.setdefault(call.id, made)
            calls.append(replace(call, id=made))
            waiting.append(made)
            number += 1
        name = message.tool_call_id
        if message.role == "tool":
            name = fitting.get(name) or (waiting[0] if waiting else _hashed(name))
            if name in waiting:
                waiting.remove(name)
        named.append(replace(message, tool_calls=tuple(calls), tool_call_id=name))
    return named


def _fitting(call: ToolCall, number: int, ids: Ids) -> str:
    """The id of a call, or an accepted one in its place; the same for the same id."""
    own = call.id or ""
    if ids is Ids.NAMED:
        return own if _NAMED.fullmatch(own) else f"functions.{call.name}:{number}"
    if ids is Ids.ANY:
        return own or f"call_{number}"
    return own if _NINE.fullmatch(own) else _hashed(own or str(number))


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:9]


def _call_in_template_form(call: ToolCall, shape: CallShape) -> dict[str, Any]:
    arguments: object = call.values()
    if shape.in_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    made: dict[str, Any] = {"type": "function", "function": function}
    return {"id": call.id, **made} if call.id else made


def _changed_call(
    call: ToolCall, change: Callable[[str], str], rename: Callable[[str], str]
) -> ToolCall:
    arguments = json.dumps(map_texts(call.values(), change))
    return ToolCall(rename(call.name), arguments, rename(call.id) if call.id else None)
