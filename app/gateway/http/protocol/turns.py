"""Turn: one message of a chat, in the form of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.gateway.stated import CALLED_WITH, MAX_PARTS, NO_ARGUMENTS, CalledWith, Id, LongText, Name
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.tools import ToolCall

MAX_MESSAGES = 10_000


class Piece(BaseModel):
    """A part of a message. Unknown fields are ignored: clients send back what they received, with
    fields of their own.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class TextPart(Piece):
    """A part of a content. Only text is served, so the others are parsed only to be refused.

    Attributes:
        refusal: the text of a part of type `refusal`, in which OpenAI's models decline.
    """

    type: Name
    text: LongText = ""
    refusal: LongText = ""


class CalledFunction(Piece):
    """A function that the assistant called, with its arguments: a JSON object, as text."""

    name: Name
    arguments: CalledWith = NO_ARGUMENTS


class TurnCall(Piece):
    """A call of a tool in a message of the assistant."""

    function: CalledFunction
    type: Literal["function"] | None = "function"
    id: Id | None = None


Parts = Annotated[tuple[TextPart, ...], Field(max_length=MAX_PARTS, fail_fast=True)]


class Turn(Piece):
    """One message of a chat.

    Attributes:
        role: developer means system.
        content: text, or parts that are joined. None is allowed for the assistant and for a tool.
        tool_call_id, name: of a tool: the id of the call that it answers, and its name.
        reasoning_content, reasoning: the assistant's thinking; vLLM has had both names.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: LongText | Parts | None = None
    tool_calls: (
        Annotated[tuple[TurnCall, ...], Field(max_length=MAX_PARTS, fail_fast=True)] | None
    ) = None
    tool_call_id: Id | None = None
    name: Name | None = None
    reasoning_content: LongText | None = None
    reasoning: LongText | None = None

    def message(self, place: str) -> ChatMessage:
        """The message in the engine's form.

        Args:
            place: prefix of the path of a field at fault.

        Raises:
            InvalidRequestError: it has parts that are not text, or lacks its content.
        """
        if self.content is None and self.role not in ("assistant", "tool"):
            how = "null" if "content" in self.model_fields_set else "missing"
            path = f"{place}.content"
            raise InvalidRequestError(f"{path} is {how}; it must be text or a list of parts", path)
        calls = self.tool_calls or ()
        is_tool = self.role == "tool"
        return ChatMessage(
            "system" if self.role == "developer" else self.role,
            joined(self.content or "", f"{place}.content"),
            (self.reasoning_content or self.reasoning or "") if self.role == "assistant" else "",
            tool_calls=tuple(
                ToolCall(call.function.name, call.function.arguments, call.id) for call in calls
            ),
            tool_call_id=(self.tool_call_id or "") if is_tool else "",
            name=(self.name or "") if is_tool else "",
        )


def joined(content: str | Sequence[TextPart], path: str) -> str:
    """The text of a content.

    Raises:
        InvalidRequestError: a part of it is not text.
    """
    if isinstance(content, str):
        return content
    for number, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            at = f"{path}[{number}].type"
            text = f"{at} is {part.type!r}; models are served for text only, so it must be 'text'"
            raise InvalidRequestError(text, at)
    return "".join(part.refusal or part.text for part in content)


def parts_allowed(path: str) -> dict[str, str]:
    """The allowed values of each field of a part, by path, for a content at this path."""
    return {
        f"{path}.*": "an object with type",
        f"{path}.*.type": "'text'",
        f"{path}.*.text": "text",
        f"{path}.*.refusal": "text",
    }


# The allowed values of each field of a message, by path.
TURNS_ALLOWED: dict[str, str] = {
    "messages": f"a list of 1 to {MAX_MESSAGES} messages",
    "messages.*": "an object with role and content",
    "messages.*.role": "one of system, developer, user, assistant, tool",
    "messages.*.content": "text or a list of parts",
    **parts_allowed("messages.*.content"),
    "messages.*.tool_calls": "a list of calls",
    "messages.*.tool_calls.*": "an object with function and id",
    "messages.*.tool_calls.*.id": "text",
    "messages.*.tool_calls.*.type": "function",
    "messages.*.tool_calls.*.function": "an object with name and arguments",
    "messages.*.tool_calls.*.function.name": "text",
    "messages.*.tool_calls.*.function.arguments": CALLED_WITH,
    "messages.*.tool_call_id": "text",
    "messages.*.name": "text",
    "messages.*.reasoning_content": "text",
    "messages.*.reasoning": "text",
}
Turns = Annotated[tuple[Turn, ...], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


def chat(turns: Sequence[Turn], *, goes_on: bool = False) -> tuple[ChatMessage, ...]:
    """The messages of a chat in the engine's form.

    Args:
        goes_on: whether the last one is a reply to continue.

    Raises:
        InvalidRequestError: one of them is wrong, or the last one requests no reply.
    """
    messages = tuple(turn.message(f"messages[{at}]") for at, turn in enumerate(turns))
    roles = [turn.role for turn in turns]
    if not goes_on:
        allowed = ("user", "tool")
        check_asking(roles, allowed, ", or the assistant's where continue_final_message is true")
    elif roles[-1] == "assistant":
        check_goes_on(messages[-1], f"messages[{len(messages) - 1}].tool_calls")
    else:
        path = f"messages[{len(messages) - 1}].role"
        whose = "the assistant's where continue_final_message is true"
        text = f"{path} is {roles[-1]!r}; the last message must be {whose}"
        raise InvalidRequestError(text, path)
    return messages


def check_asking(roles: Sequence[str], allowed: Sequence[str], otherwise: str = "") -> None:
    """
    Args:
        roles: of the messages of a chat.
        allowed: the roles that may request a reply. Messages of the system may follow.
        otherwise: further allowed last messages, in the words of the refusal.

    Raises:
        InvalidRequestError: the last of the others has another role, or there is none.
    """
    at = asking(roles)
    if roles[at] not in allowed:
        path = f"messages[{at}].role"
        whose = " or ".join(_WHOSE[role] for role in allowed) + otherwise
        text = f"the last message must be {whose}, apart from system messages"
        raise InvalidRequestError(f"{path} is {roles[at]!r}; {text}", path)


def asking(roles: Sequence[str | None]) -> int:
    """The index of the message that requests a reply: the last that is not the system's, or the
    last one if all are. Coding assistants let the system add to the user's message.
    """
    numbers = [at for at, role in enumerate(roles) if role not in ("system", "developer")]
    return numbers[-1] if numbers else len(roles) - 1


_WHOSE = {"user": "the user's", "tool": "a tool's"}


def check_goes_on(reply: ChatMessage, path: str) -> None:
    """
    Raises:
        InvalidRequestError: it is not a reply that can be continued.
    """
    if reply.tool_calls:
        text = f"{path} has tool calls; a message to continue must have none"
        raise InvalidRequestError(text, path)


def check_prompting(adds: bool | None, goes_on: bool | None) -> None:
    """Check `add_generation_prompt` and `continue_final_message`, as vLLM defines them: the request
    either asks for a new message or continues the last one.

    Raises:
        InvalidRequestError: it does neither, or both.
    """
    if adds is False and not goes_on:
        text = "true or left out where continue_final_message is not true"
        raise InvalidRequestError(
            f"add_generation_prompt is false; it must be {text}", "add_generation_prompt"
        )
    if adds and goes_on:
        text = "add_generation_prompt is true; it must be false or left out where"
        raise InvalidRequestError(f"{text} continue_final_message is true", "add_generation_prompt")


def as_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function in the form that chat templates expect, without fields that only OpenAI's servers
    use."""
    function = tool.get("function")
    if isinstance(function, dict):
        return {**tool, "function": {k: v for k, v in function.items() if k != "strict"}}
    return tool
