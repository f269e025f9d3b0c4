"""Tools: functions that a request lets a model call, and a reply's calls of them."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.api.errors import InvalidRequestError

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 1 << 18
_NAME_LENGTH = 256
# As Anthropic's documentation has it for calls that a client gives back to a model.
_INVALID = "INVALID_JSON"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call, as a model wrote it. Nothing here runs it.

    Attributes:
        arguments: a JSON object, as text. In a history it may be any text (`values`).
        id: the call's id, if it has one, by which the message with its result refers to it.
    """

    name: str
    arguments: str
    id: str | None = None

    def values(self) -> dict[str, Any]:
        """The arguments by name.

        Models write broken JSON, and a client that sends it back would lose the conversation if it
        were refused. So text that is not an object becomes the value of the key `INVALID_JSON`: a
        template can write that, and the model sees its own text. An object that was encoded as text
        twice is decoded twice.
        """
        found: object = self.arguments
        for _ in range(2):
            if isinstance(found, str):
                with suppress(ValueError, RecursionError):
                    found = json.loads(found)
        return found if isinstance(found, dict) else {_INVALID: self.arguments}

    def in_openai_form(self) -> dict[str, object]:
        """The call as an entry of `tool_calls` in OpenAI's API."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The parts of a reply that calls tools.

    Attributes:
        calls: in order; at least one.
        content: the reply's text without the calls. The text of the stream has the calls too, in
            the model's own format.
    """

    calls: tuple[ToolCall, ...]
    content: str = ""

    @staticmethod
    def load(saved: Mapping[str, Any]) -> ToolUse:
        """Load from the form of `dataclasses.asdict`, or JSON of it."""
        return ToolUse(tuple(ToolCall(**call) for call in saved["calls"]), saved["content"])


def json_bytes(value: object) -> int:
    """Size of a value as JSON, in bytes.

    Raises:
        TypeError, ValueError, RecursionError: JSON cannot represent it.
    """
    return len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())


def check_tools(tools: object) -> None:
    """Check the functions that a request states, in the form of OpenAI's API.

    The template decides which JSON Schema it supports for the parameters.

    Raises:
        InvalidRequestError: it is not such a list, or it is too large; the sentence names the
            place.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        _refuse("tools", tools, "a list of functions")
    if len(tools) > MAX_TOOLS:
        text = f"tools has {len(tools)} entries; at most {MAX_TOOLS} are allowed"
        raise InvalidRequestError(text, "tools")
    for number, tool in enumerate(tools):
        _check_tool(f"tools[{number}]", tool)
    try:
        size = json_bytes(tools)
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequestError("tools must have values as JSON has them", "tools") from None
    if size > MAX_TOOLS_BYTES:
        text = f"tools has {size} bytes as JSON; at most {MAX_TOOLS_BYTES} are allowed"
        raise InvalidRequestError(text, "tools")


def _check_tool(place: str, tool: object) -> None:
    if not isinstance(tool, Mapping):
        _refuse(place, tool, "an object with type and function")
    if tool.get("type") != "function":
        _refuse(f"{place}.type", tool.get("type"), "function")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        _refuse(f"{place}.function", function, "an object with name and parameters")
    name = function.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_LENGTH:
        _refuse(f"{place}.function.name", name, f"a text of 1 to {_NAME_LENGTH} characters")
    if not isinstance(function.get("description", ""), str):
        _refuse(f"{place}.function.description", function["description"], "text")
    if not isinstance(function.get("parameters", {}), Mapping):
        _refuse(f"{place}.function.parameters", function["parameters"], "an object, a JSON Schema")


def _refuse(place: str, value: object, allowed: str) -> NoReturn:
    raise InvalidRequestError(f"{place} is {reprlib.repr(value)}; it must be {allowed}", "tools")
