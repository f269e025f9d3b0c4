"""Tools: the functions that a request lets a model call, and the calls that a reply makes."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.api.errors import InvalidRequestError

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 1 << 18
_NAME_LENGTH = 256


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function, as a model wrote it. Nothing here runs it.

    Attributes:
        arguments: a JSON object, as text.
        id: the call's name, if it has one, by which the message with its outcome says which call
            that answers.
    """

    name: str
    arguments: str
    id: str | None = None

    def in_openai_form(self) -> dict[str, object]:
        """The call as an entry of `tool_calls`, as OpenAI's interface has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a reply consists of that calls tools.

    Attributes:
        calls: in their order; at least one.
        content: what the reply says beside them. The text of the reply has the calls too, in the
            model's own format.
    """

    calls: tuple[ToolCall, ...]
    content: str = ""

    @staticmethod
    def load(told: Mapping[str, Any]) -> ToolUse:
        """From what `dataclasses.asdict` makes of one, and JSON of that."""
        return ToolUse(tuple(ToolCall(**call) for call in told["calls"]), told["content"])


def json_bytes(value: object) -> int:
    """Bytes of a value as JSON.

    Raises:
        TypeError, ValueError, RecursionError: JSON has none such.
    """
    return len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())


def check_tools(tools: object) -> None:
    """Check the functions that a request states, in the form that OpenAI's interface has.

    What JSON Schema its parameters are is the template's affair.

    Raises:
        InvalidRequestError: it is no such list, or it is too large; the sentence names the place.
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
