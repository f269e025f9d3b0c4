"""Structure: the form that a reply must have, as a request states it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from engine.api.errors import InvalidRequestError

MAX_STRUCTURE_BYTES = 1 << 17
MAX_CHOICES = 1024


class StructureKind(StrEnum):
    """How the form of a reply is stated."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


_KINDS = ", ".join(StructureKind)
_FORMS = {
    StructureKind.JSON_SCHEMA: "a JSON Schema, which is an object, true or false",
    StructureKind.JSON_OBJECT: "true",
    StructureKind.REGEX: "a regular expression that is not empty",
    StructureKind.CHOICE: f"a list of 1 to {MAX_CHOICES} different texts, none of them empty",
    StructureKind.GRAMMAR: "a grammar in the syntax of Lark or GBNF that is not empty",
}


@dataclass(frozen=True, slots=True)
class Structure:
    """The form that a whole reply must have, except its thinking.

    Attributes:
        kind: the kind of `source`.
        source: a JSON Schema, or a list of choices, as JSON; a regular expression that the whole
            reply matches; a grammar; or nothing if any JSON object will do.

    Raises:
        InvalidRequestError: `source` does not have the form of its kind, or it is too large.
            Whether a model can follow it shows when it is compiled.
    """

    kind: StructureKind
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, StructureKind):
            raise InvalidRequestError(
                f"structure has the kind {self.kind!r}; it must be one of {_KINDS}", "structure"
            )
        try:
            size = len(self.source.encode())
        except (AttributeError, UnicodeEncodeError):
            self._refuse(self.source)
        if size > MAX_STRUCTURE_BYTES:
            raise InvalidRequestError(
                f"structure.{self.kind} has {size} bytes; at most {MAX_STRUCTURE_BYTES} are "
                "allowed",
                "structure",
            )
        if not self._has_form():
            self._refuse(self.source)

    @staticmethod
    def of(stated: object) -> Structure:
        """Parse the structure of a request, a map of one kind to its source, such as
        `{"json_schema": {"type": "object"}}`, `{"regex": "[0-9]+"}`, `{"choice": ["a", "b"]}`,
        `{"grammar": "start: /a/"}` or `{"json_object": true}`.

        Raises:
            InvalidRequestError: it is not such a map.
        """
        if not isinstance(stated, Mapping):
            raise InvalidRequestError(
                f"structure is {reprlib.repr(stated)}; it must be a map of one of {_KINDS} to its "
                "source",
                "structure",
            )
        if len(stated) != 1 or not {*stated} <= {*StructureKind}:
            raise InvalidRequestError(
                f"structure has {', '.join(map(reprlib.repr, stated)) or 'nothing'}; it must have "
                f"exactly one of {_KINDS}",
                "structure",
            )
        (name, value), *_ = stated.items()
        kind = StructureKind(name)
        if kind is StructureKind.JSON_OBJECT:
            if value is not True:
                _refuse(kind, value)
            return Structure(kind)
        if kind in (StructureKind.REGEX, StructureKind.GRAMMAR):
            if not isinstance(value, str):
                _refuse(kind, value)
            return Structure(kind, value)
        # A text of JSON would be read as its content.
        if isinstance(value, str):
            _refuse(kind, value)
        try:
            source = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            _refuse(kind, value)
        return Structure(kind, source)

    @property
    def value(self) -> object:
        """The stated value of its kind: a schema, a list of choices, a text, or true."""
        if self.kind is StructureKind.JSON_OBJECT:
            return True
        if self.kind in (StructureKind.JSON_SCHEMA, StructureKind.CHOICE):
            return json.loads(self.source, parse_constant=_refuse_constant)
        return self.source

    @property
    def stated(self) -> dict[str, object]:
        """The map that a request states, for `of`."""
        return {self.kind.value: self.value}

    def _has_form(self) -> bool:
        if self.kind is StructureKind.JSON_OBJECT:
            return self.source == ""
        try:
            value = self.value
        except (ValueError, RecursionError):
            return False
        if self.kind is StructureKind.JSON_SCHEMA:
            return isinstance(value, (dict, bool))
        if self.kind is StructureKind.CHOICE:
            return (
                isinstance(value, list)
                and 1 <= len(value) <= MAX_CHOICES
                and all(isinstance(choice, str) and choice for choice in value)
                and len({*value}) == len(value)
            )
        return bool(self.source.strip())

    def _refuse(self, value: object) -> NoReturn:
        _refuse(self.kind, value)


def _refuse(kind: StructureKind, value: object) -> NoReturn:
    raise InvalidRequestError(
        f"structure.{kind} is {reprlib.repr(value)}; it must be {_FORMS[kind]}", "structure"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
