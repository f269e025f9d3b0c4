"""ForcedCalls: the tools that a reply has to call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.gateway.http.protocol.payload import Payload, Wanted
from app.gateway.http.protocol.structured import followed
from app.gateway.stated import Name
from engine.api.errors import InvalidRequestError
from engine.api.tools import ToolCall
from engine.structure.schemas import mapped

ANY = "required"
ALLOWED = "none, auto, required, or the function to call"


class ChosenFunction(Payload):
    name: Name


class ChosenTool(Payload):
    """A function by its name."""

    type: Name = "function"
    function: ChosenFunction


class ForcedCalls:
    """Calls that a reply has to make. The reply is JSON of this form, whatever format its model
    uses for its own calls.

    Parts of their schemas that cannot be followed are left out, unless a function is `strict`.

    Args:
        tools: functions in OpenAI's form, as the request states them.
        place: of the schema of one in the request, with `{}` for its number.
        name: of the one to call; None is any, one or several.
        calls_one: whether they may not be several.
        said: the field that says so, and its value.

    Attributes:
        schema: of the whole reply.
        left_out: places of the parts left out.

    Raises:
        InvalidRequestError: there is no such function, or a strict one cannot be followed.
    """

    def __init__(
        self,
        tools: Sequence[dict[str, Any]],
        name: str | None,
        *,
        calls_one: bool,
        said: tuple[str, str],
        place: str = "tools[{}].function.parameters",
    ) -> None:
        functions = {
            number: tool["function"]
            for number, tool in enumerate(tools)
            if isinstance(tool.get("function"), dict)
        }
        self._name, self._said = name, said
        chosen = {at: one for at, one in functions.items() if name in (None, one.get("name"))}
        if not chosen:
            stated = ", ".join(repr(one.get("name")) for one in functions.values()) or "none"
            field, value = said
            raise InvalidRequestError(f"{field} is {value!r}; the tools are {stated}", field)
        self.left_out: tuple[str, ...] = ()
        self.schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": []}}
        for number, (at, one) in enumerate(chosen.items()):
            is_strict = one.get("strict") is True
            parameters, left_out = followed(_parameters(one), place.format(at), is_strict=is_strict)
            self.left_out += left_out
            if name is not None:
                self.schema = parameters
                return
            target = f"#/$defs/{number}"
            if (moved := _moved(parameters, target)) != parameters:
                self.schema.setdefault("$defs", {})[str(number)] = moved
                parameters = {"$ref": target}
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

    def wanted(self, stated: Wanted | None) -> Wanted:
        """The form of the reply.

        Args:
            stated: the request's other structure; None is none.

        Raises:
            InvalidRequestError: the request states another structure.
        """
        if stated is not None:
            raise self.wrong("where the reply has a form")
        return Wanted({"json_schema": self.schema}, "tools", self.left_out)

    def wrong(self, where: str) -> InvalidRequestError:
        """The error if calls cannot be forced here."""
        field, value = self._said
        return InvalidRequestError(f"{field} is {value!r}; it must be none or auto {where}", field)

    def calls(self, text: str) -> tuple[ToolCall, ...]:
        """The calls of a reply; none if it was cut off before they were complete."""
        try:
            payload = json.loads(text)
        except ValueError:
            return ()
        if self._name is not None:
            return (ToolCall(self._name, json.dumps(payload, ensure_ascii=False)),)
        return tuple(
            ToolCall(one["name"], json.dumps(one["parameters"], ensure_ascii=False))
            for one in payload
        )


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """A schema whose pointers to places within itself are right where it stands at `place`."""
    own = schema.get("$id")
    begins = ("#", f"{own}#") if isinstance(own, str) else ("#",)

    def move(node: dict[str, Any], _place: str) -> dict[str, Any]:
        pointer = node.get("$ref")
        for begin in begins:
            if isinstance(pointer, str) and (pointer == begin or pointer.startswith(f"{begin}/")):
                return {**node, "$ref": place + pointer[len(begin) :]}
        return node

    moved: dict[str, Any] = mapped({key: one for key, one in schema.items() if key != "$id"}, move)
    return moved


def _parameters(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments: an object, unless it states another type."""
    return {"type": "object", **(function.get("parameters") or {})}
