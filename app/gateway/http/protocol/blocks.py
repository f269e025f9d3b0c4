"""Said: one message of a chat, as blocks in Anthropic's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from app.gateway.http.protocol.turns import (
    MAX_MESSAGES,
    Piece,
    check_asking,
    check_goes_on,
    parts_allowed,
)
from app.gateway.stated import CALLED_WITH, MAX_PARTS, NO_ARGUMENTS, CalledWith, Id, LongText, Name
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.tools import ToolCall


class InnerBlock(Piece):
    """A block inside a tool result or a system prompt. Only text is served, so the others are
    parsed only to be refused.

    Attributes:
        tool_name: of type `tool_reference`, which a tool search returns: one that it found.
    """

    type: Name
    text: LongText = ""
    tool_name: Name | None = None


Inner = Annotated[tuple[InnerBlock, ...], Field(max_length=MAX_PARTS, fail_fast=True)]


class Block(InnerBlock):
    """A block of a message.

    Attributes:
        thinking: of type `thinking`; its signature has no effect.
        id, name, input: of type `tool_use`: a call of a tool by the assistant.
        tool_use_id, content: of type `tool_result`: the call's id, and its result.
    """

    thinking: LongText = ""
    id: Id | None = None
    name: Name | None = None
    input: CalledWith = NO_ARGUMENTS
    tool_use_id: Id | None = None
    content: LongText | Inner | None = None


Blocks = Annotated[tuple[Block, ...], Field(max_length=MAX_PARTS, fail_fast=True)]


class Said(Piece):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: LongText | Blocks

    def messages(self, place: str, called: dict[str, str]) -> list[ChatMessage]:
        """The message in the engine's form; each tool result is a message of its own.

        Args:
            place: prefix of the path of a field at fault.
            called: names of the called tools by call id; this message's calls are added.

        Raises:
            InvalidRequestError: this role may not have a block, or a block lacks a field.
        """
        if isinstance(self.content, str):
            return [ChatMessage(self.role, self.content)]
        results: list[ChatMessage] = []
        texts, thoughts, calls = [], [], []
        for number, block in enumerate(self.content):
            at = f"{place}.content[{number}]"
            if block.type == "text":
                texts.append(block.text)
            elif self.role == "assistant" and block.type == "tool_use":
                calls.append(_call(block, at))
                called[calls[-1].id or ""] = calls[-1].name
            elif self.role == "assistant" and block.type == "thinking":
                thoughts.append(block.thinking)
            elif self.role == "user" and block.type == "tool_result":
                results.append(_result(block, at, called))
            elif not (self.role == "assistant" and block.type == "redacted_thinking"):
                allowed = " or ".join(_TYPES[self.role])
                text = f"{at}.type is {block.type!r}; models are served for text only, so of the"
                raise InvalidRequestError(f"{text} {self.role} it must be {allowed}", f"{at}.type")
        if results and not texts:
            return results
        said = ChatMessage(
            self.role, "\n".join(texts), "\n".join(thoughts), tool_calls=tuple(calls)
        )
        return [*results, said]


_TYPES = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
}


def _call(block: Block, at: str) -> ToolCall:
    for name in ("id", "name"):
        _check(block, name, at)
    return ToolCall(block.name or "", block.input, block.id)


def _result(block: Block, at: str, called: Mapping[str, str]) -> ChatMessage:
    _check(block, "tool_use_id", at)
    name = block.tool_use_id or ""
    text = inner_text(block.content or "", f"{at}.content", ("text", "tool_reference"))
    return ChatMessage("tool", text, tool_call_id=name, name=called.get(name, ""))


def _check(block: InnerBlock, name: str, at: str) -> None:
    if getattr(block, name) is None:
        allowed = BLOCKS_ALLOWED[f"messages.*.content.*.{name}"]
        text = f"{at}.{name} is missing; it must be {allowed} in a block of type {block.type}"
        raise InvalidRequestError(text, f"{at}.{name}")


def inner_text(
    content: str | Sequence[InnerBlock], path: str, types: Sequence[str] = ("text",)
) -> str:
    """The text of blocks.

    Args:
        types: the allowed block types.

    Raises:
        InvalidRequestError: one has another type, or lacks a field.
    """
    if isinstance(content, str):
        return content
    texts = []
    for number, block in enumerate(content):
        at = f"{path}[{number}]"
        if block.type not in types:
            allowed = " or ".join(map(repr, types))
            text = f"{at}.type is {block.type!r}; models are served for text only, so it must be"
            raise InvalidRequestError(f"{text} {allowed}", f"{at}.type")
        if block.type == "tool_reference":
            _check(block, "tool_name", at)
            texts.append(f"The tool {block.tool_name} can be called now.")
        else:
            texts.append(block.text)
    return "\n".join(texts)


def found_tools(said: Sequence[Said]) -> set[str]:
    """The names of tools in the references of tool results."""
    blocks = [block for one in said if not isinstance(one.content, str) for block in one.content]
    inner = [one for block in blocks if isinstance(block.content, tuple) for one in block.content]
    return {one.tool_name or "" for one in inner if one.type == "tool_reference"}


# The allowed values of each field of a message, by path.
BLOCKS_ALLOWED: dict[str, str] = {
    "messages": f"a list of 1 to {MAX_MESSAGES} messages",
    "messages.*": "an object with role and content",
    "messages.*.role": "one of system, user, assistant",
    "messages.*.content": "text or a list of blocks",
    "messages.*.content.*": "an object with type",
    "messages.*.content.*.type": "text",
    "messages.*.content.*.text": "text",
    "messages.*.content.*.thinking": "text",
    "messages.*.content.*.id": "text",
    "messages.*.content.*.name": "text",
    "messages.*.content.*.input": CALLED_WITH,
    "messages.*.content.*.tool_use_id": "text",
    "messages.*.content.*.content": "text or a list of blocks of type text or tool_reference",
    **parts_allowed("messages.*.content.*.content"),
    "messages.*.content.*.tool_name": "text, the name of a tool",
}
Conversation = Annotated[tuple[Said, ...], Field(min_length=1, max_length=MAX_MESSAGES)]


def conversation(said: Sequence[Said]) -> list[ChatMessage]:
    """The messages of a chat in the engine's form. Consecutive messages of one role are joined.

    Raises:
        InvalidRequestError: one of them is wrong, or the last one is neither from the user nor a
            reply that can be continued.
    """
    messages: list[ChatMessage] = []
    called: dict[str, str] = {}
    for number, one in enumerate(said):
        for message in one.messages(f"messages[{number}]", called):
            if messages and message.role == messages[-1].role != "tool":
                messages[-1] = _joined(messages[-1], message)
            else:
                messages.append(message)
    if said[-1].role == "assistant":
        check_goes_on(messages[-1], f"messages[{len(said) - 1}].content")
    else:
        otherwise = ", or the assistant's to continue"
        check_asking([one.role for one in said], ("user",), otherwise)
    return messages


def _joined(one: ChatMessage, other: ChatMessage) -> ChatMessage:
    return ChatMessage(
        one.role,
        "\n\n".join(filter(None, (one.content, other.content))),
        "\n\n".join(filter(None, (one.thinking, other.thinking))),
        one.tool_calls + other.tool_calls,
    )
