"""Structured: the fields for the structure of a reply, in OpenAI's and vLLM's forms."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from app.gateway.http.protocol.payload import Payload, Wanted
from app.gateway.stated import Choices, LongText, Name, Schema, Source
from engine.api.errors import InvalidRequestError
from engine.structure.schemas import Loosened, loosened

_FORMATS = ("text", "json_object", "json_schema")


def followed(schema: Any, place: str, *, is_strict: bool = False) -> Loosened:
    """A schema without the parts that cannot be followed, and their places in the request.

    Args:
        place: of the schema in the request.
        is_strict: whether all of it has to be followed.

    Raises:
        InvalidRequestError: it is strict, and cannot be.
    """
    made, pointers = loosened(schema)
    left_out = tuple(f"{place}{pointer}" for pointer in pointers)
    if is_strict and left_out:
        text = f"{left_out[0]} cannot be followed; it must be left out where strict is true"
        raise InvalidRequestError(text, place)
    return Loosened(made, left_out)


def _of_schema(schema: Any, place: str, *, is_strict: bool | None = False) -> Wanted:
    made, left_out = followed(schema, place, is_strict=bool(is_strict))
    return Wanted({"json_schema": made}, place, left_out)


class JsonSchema(Payload):
    """A schema with the name that OpenAI's interface requires."""

    schema_: Schema | bool | None = Field(default=None, alias="schema")
    name: Name | None = None
    strict: bool | None = None
    description: LongText | None = None


class ResponseFormat(Payload):
    """The structure in OpenAI's form."""

    type: Name
    json_schema: JsonSchema | None = None

    def wanted(self) -> Wanted | None:
        """The form; None for text.

        Raises:
            InvalidRequestError: there is no such format, or it lacks its schema, or that is strict
                and cannot be followed.
        """
        if self.type not in _FORMATS:
            allowed = ", ".join(_FORMATS)
            text = f"response_format.type is {self.type!r}; it must be one of {allowed}"
            raise InvalidRequestError(text, "response_format.type")
        if self.type == "text":
            return None
        if self.type == "json_object":
            return Wanted({"json_object": True}, "response_format")
        path = "response_format.json_schema.schema"
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise InvalidRequestError(f"{path} is missing; it must be a JSON schema", path)
        return _of_schema(self.json_schema.schema_, path, is_strict=self.json_schema.strict)


class SchemaFormat(Payload):
    """The form of OpenAI's responses and Anthropic's messages: the schema is beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Schema | bool | None = Field(default=None, alias="schema")
    name: Name | None = None
    strict: bool | None = None
    description: LongText | None = None

    def wanted_at(self, place: str) -> Wanted | None:
        """The form; None for text.

        Args:
            place: the path of this field.

        Raises:
            InvalidRequestError: the schema is missing, or strict and cannot be followed.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return Wanted({"json_object": True}, place)
        path = f"{place}.schema"
        if self.schema_ is None:
            raise InvalidRequestError(f"{path} is missing; it must be a JSON schema", path)
        return _of_schema(self.schema_, path, is_strict=self.strict)


class StructuredOutputs(Payload):
    """The structure in vLLM's form, with one of the fields.

    Attributes:
        json_: a JSON schema, as an object or as text.
        grammar: in Lark's form, or in GBNF.
    """

    json_: Schema | Source | None = Field(default=None, alias="json")
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    json_object: bool | None = None

    def wanted(self, place: str = "structured_outputs") -> Wanted | None:
        """The form; None if nothing is stated.

        Raises:
            InvalidRequestError: there are several, or the schema is no JSON.
        """
        stated = {
            name: value
            for name, value in (
                ("json_schema", _schema(self.json_, f"{place}.json")),
                ("regex", self.regex),
                ("choice", self.choice),
                ("grammar", self.grammar),
                ("json_object", self.json_object or None),
            )
            if value is not None
        }
        if len(stated) > 1:
            names = ", ".join(stated)
            raise InvalidRequestError(f"{place} has {names}; only one is allowed", place)
        for kind, value in stated.items():
            if kind == "json_schema":
                return _of_schema(value, f"{place}.json")
            return Wanted({kind: value}, f"{place}.{kind}")
        return None


def format_allowed(place: str) -> dict[str, str]:
    """The allowed values of each field of a `SchemaFormat`, by path."""
    return {
        place: "an object with type",
        f"{place}.type": f"one of {', '.join(_FORMATS)}",
        f"{place}.schema": "a JSON schema",
        f"{place}.name": "text",
        f"{place}.strict": "true or false",
        f"{place}.description": "text",
    }


STRUCTURED_ALLOWED: dict[str, str] = {
    "response_format": "an object with type",
    "response_format.type": f"one of {', '.join(_FORMATS)}",
    "response_format.json_schema": "an object with schema",
    "response_format.json_schema.schema": "a JSON schema",
    "response_format.json_schema.name": "text",
    "response_format.json_schema.strict": "true or false",
    "structured_outputs": "an object with json, regex, choice, grammar or json_object",
    "structured_outputs.json": "a JSON schema",
    "structured_outputs.regex": "text",
    "structured_outputs.choice": "a list of texts",
    "structured_outputs.grammar": "text",
    "structured_outputs.json_object": "true or false",
    "guided_json": "a JSON schema",
    "guided_regex": "text",
    "guided_choice": "a list of texts",
    "guided_grammar": "text",
}


class Structured(Payload):
    """The fields that state a structure; `guided_...` are those of older vLLM."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | Source | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None

    def wanted(self) -> Wanted | None:
        """The form of the reply; None if none is stated.

        Raises:
            InvalidRequestError: there is more than one, or one cannot be read.
        """
        found: dict[str, Wanted | None] = {}
        if self.response_format is not None:
            found["response_format"] = self.response_format.wanted()
        if self.structured_outputs is not None:
            found["structured_outputs"] = self.structured_outputs.wanted()
        for name, kind in (
            *(("guided_json", "json_schema"), ("guided_regex", "regex")),
            *(("guided_choice", "choice"), ("guided_grammar", "grammar")),
        ):
            value = getattr(self, name)
            if value is not None:
                is_schema = kind == "json_schema"
                found[name] = (
                    _of_schema(_schema(value, name), name)
                    if is_schema
                    else Wanted({kind: value}, name)
                )
        stated = {name: one for name, one in found.items() if one is not None}
        if len(stated) > 1:
            first, second, *_ = stated
            text = f"{second} is stated beside {first}; only one of them is allowed"
            raise InvalidRequestError(text, second)
        return next(iter(stated.values()), None)


def _schema(payload: dict[str, Any] | str | None, path: str) -> Any:
    """
    Raises:
        InvalidRequestError: a text is no JSON.
    """
    if not isinstance(payload, str):
        return payload
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{path} is not JSON; it must be a JSON schema", path) from None
