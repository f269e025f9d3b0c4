"""ForcedCalls: which of the tools that are stated a reply has to call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.gateway.http.protocol.told import Told
from app.gateway.stated import Name
from engine.api.errors import InvalidRequestError
from engine.api.tools import ToolCall

ANY = "required"
# Keys of a schema whose values are none, whatever they look like.
_VALUES = ("const", "enum", "default", "examples")
ALLOWED = "none, auto, required, or the function to call"


class ChosenFunction(Told):
    name: Name


class ChosenTool(Told):
    """A function by its name."""

    type: Name = "function"
    function: ChosenFunction


class ForcedCalls:
    """Calls that a reply has to make. It is written as JSON of this form, whatever the format is in
    which its model writes calls by itself.

    Args:
        tools: functions in OpenAI's form, as the request states them.
        name: of the one to call; None is any, one or several.
        calls_one: whether they may not be several.
        said: the field that says so, and what it says.

    Raises:
        InvalidRequestError: there is no such function.
    """

    def __init__(
        self,
        tools: Sequence[dict[str, Any]],
        name: str | None,
        *,
        calls_one: bool,
        said: tuple[str, str],
    ) -> None:
        functions = [tool["function"] for tool in tools if isinstance(tool.get("function"), dict)]
        self._name, self._said = name, said
        chosen = [one for one in functions if name in (None, one.get("name"))]
        if not chosen:
            stated = ", ".join(repr(one.get("name")) for one in functions) or "none"
            field, value = said
            raise InvalidRequestError(f"{field} is {value!r}; the tools are {stated}", field)
        if name is not None:
            self.schema: dict[str, Any] = _parameters(chosen[0])
            return
        self.schema = {"type": "array", "minItems": 1, "items": {"anyOf": []}}
        for number, one in enumerate(chosen):
            parameters = _parameters(one)
            place = f"#/$defs/{number}"
            if (moved := _moved(parameters, place)) != parameters:
                self.schema.setdefault("$defs", {})[str(number)] = moved
                parameters = {"$ref": place}
            self.schema["items"]["anyOf"].append(
                {
                    "type": "object",
                    "properties": {"name": {"const": one.get("name")}, "parameters": parameters},
                    "required": ["name", "parameters"],
                    "additionalProperties": False,
                }
            )
        if calls_one:
            self.schema["maxItems"] = 1

    def structure(self, stated: dict[str, Any] | None) -> dict[str, Any]:
        """The structure of the reply as the engine takes it.

        Args:
            stated: what else the request wants of its form; None is nothing.

        Raises:
            InvalidRequestError: something else is wanted.
        """
        if stated is not None:
            raise self.wrong("where the reply has a form")
        return {"json_schema": self.schema}

    def wrong(self, where: str) -> InvalidRequestError:
        """The error where calls cannot be demanded."""
        field, value = self._said
        return InvalidRequestError(f"{field} is {value!r}; it must be none or auto {where}", field)

    def calls(self, text: str) -> tuple[ToolCall, ...]:
        """The calls that a reply makes; none if it was cut off before they were whole."""
        try:
            told = json.loads(text)
        except ValueError:
            return ()
        if self._name is not None:
            return (ToolCall(self._name, json.dumps(told, ensure_ascii=False)),)
        return tuple(
            ToolCall(one["name"], json.dumps(one["parameters"], ensure_ascii=False)) for one in told
        )


def _moved(schema: Any, place: str) -> Any:
    """A schema whose pointers to places within itself are right where it stands at `place`."""
    if isinstance(schema, list):
        return [_moved(entry, place) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: one if key in _VALUES else _moved(one, place) for key, one in schema.items()}
    pointer = schema.get("$ref")
    if isinstance(pointer, str) and (pointer == "#" or pointer.startswith("#/")):
        moved["$ref"] = place + pointer[1:]
    return moved


def _parameters(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments: an object, whatever else is stated."""
    return {"type": "object", **(function.get("parameters") or {})}
