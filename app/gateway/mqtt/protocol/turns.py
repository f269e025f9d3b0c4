"""ChatTurn: one message of a client's chat, in the form of OpenAI's interface."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.gateway.stated import MAX_PARTS, NO_ARGUMENTS, CalledWith, Id, LongText, Name
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.tools import ToolCall


class Wire(BaseModel):
    """A part of a client's message; unknown fields and other types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class CalledFunction(Wire):
    """A function that the assistant called, with its arguments: a JSON object, as text."""

    name: Name
    arguments: CalledWith = NO_ARGUMENTS


class TurnCall(Wire):
    """A call of a tool in a message of the assistant."""

    function: CalledFunction
    type: Literal["function"] = "function"
    id: Id | None = None


_Calls = Annotated[tuple[TurnCall, ...], Field(max_length=MAX_PARTS, fail_fast=True)]


# The fields that only one role has.
_OWNERS = {
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "tool_call_id": "tool",
    "name": "tool",
}


class ChatTurn(Wire):
    """One message of a chat.

    Attributes:
        content: the text; for a tool, its result. None is allowed for the assistant and for a tool.
        tool_calls: of the assistant.
        tool_call_id, name: of a tool: the id of the call that it answers, and its name.
        reasoning_content: the assistant's thinking. Templates that repeat it do so between a call
            and its result.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: LongText | None = None
    tool_calls: _Calls | None = None
    tool_call_id: Id | None = None
    name: Name | None = None
    reasoning_content: LongText | None = None

    def check(self, place: str) -> None:
        """Check that the fields fit the role.

        Raises:
            InvalidRequestError: they do not; `place` is the prefix of the field's path.
        """
        if self.content is None and self.role not in ("assistant", "tool"):
            how = "null" if "content" in self.model_fields_set else "missing"
            raise InvalidRequestError(
                f"{place}.content is {how}; it must be text", f"{place}.content"
            )
        for field, role in _OWNERS.items():
            if getattr(self, field) is not None and self.role != role:
                path = f"{place}.{field}"
                text = f"{path} is stated of the role {self.role!r}; only the role {role} has it"
                raise InvalidRequestError(text, path)

    def message(self) -> ChatMessage:
        """The message in the engine's form."""
        calls = self.tool_calls or ()
        return ChatMessage(
            self.role,
            self.content or "",
            self.reasoning_content or "",
            tool_calls=tuple(
                ToolCall(call.function.name, call.function.arguments, call.id) for call in calls
            ),
            tool_call_id=self.tool_call_id or "",
            name=self.name or "",
        )
