"""Payload: a JSON request, parsed with its unknown fields set apart, or refused with a reason."""

from __future__ import annotations

import gc
import json
import reprlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from app.gateway.faults import Fault
from engine.api.errors import EngineError

_MAX_NAME = 64
_MAX_NAMES = 20
_MOST_ERRORS = 64  # that are looked through
_IGNORED = "x-batchdeck-ignored"

T = TypeVar("T", bound="Payload")


_MAX_PAIRS = 16
_MAX_KEY = 64
_MAX_VALUE = 512
# OpenAI's limits for the client's own metadata.
Pairs = Annotated[
    dict[Annotated[str, Field(max_length=_MAX_KEY)], Annotated[str, Field(max_length=_MAX_VALUE)]],
    Field(max_length=_MAX_PAIRS),
]
PAIRS_ALLOWED = f"a map of at most {_MAX_PAIRS} names to texts"
PAIR_ALLOWED = f"a name of at most {_MAX_KEY} characters, and {_MAX_VALUE} of text"


class Wanted(NamedTuple):
    """The form that a reply has to have.

    Attributes:
        structure: as the engine takes it.
        field: of the request, which states it.
        left_out: places of the parts that cannot be followed.
    """

    structure: dict[str, Any]
    field: str
    left_out: tuple[str, ...] = ()


class Payload(BaseModel):
    """A client's request. Unknown fields are set apart and have no effect: clients send fields that
    another server of the same interface knows.

    Attributes:
        ALLOWED: the allowed values, by path, with `*` for numbers and keys.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    ALLOWED: ClassVar[dict[str, str]] = {}

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of stated fields that have no effect, at most 20, in a form that headers may
        have."""
        extra = self.model_extra or {}
        return tuple(ascii(_name(name))[1:-1] for name in list(extra)[:_MAX_NAMES])

    @property
    def ignored_header(self) -> dict[str, str]:
        """The header with these names, if there are any."""
        return {_IGNORED: ", ".join(self.ignored)} if self.ignored else {}

    def wanted(self) -> Wanted | None:
        """Read the form that the reply has to have; None if the request states none.

        Raises:
            InvalidRequestError: the field that states it is wrong.
        """
        return None

    def own_name(self, param: str) -> str:
        """The request's name for the sampling parameter with this name in the engine."""
        return param

    @cached_property
    def form(self) -> Wanted | None:
        """The result of `wanted`, read once: a schema of 128 KB takes 7 ms."""
        return self.wanted()


def read(kind: type[T], body: bytes) -> T:
    """Parse a request.

    Raises:
        Fault: 400, with one sentence about the first error.
    """
    try:
        with _uncollected():
            return kind.model_validate_json(body.removeprefix(BOM_UTF8))
    except ValidationError as error:
        raise _fault(kind, _meant(kind, error.errors(include_url=False))) from None
    except EngineError as error:
        raise Fault.of(error.info()) from None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection for the block. Parsing makes objects and no garbage, and the
    collector walked all of them again and again: 4 MB of empty lists took 0.57 s of the loop, and
    take 0.2 s.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _fault(kind: type[Payload], detail: ErrorDetails) -> Fault:
    """Pydantic's error as a fault."""
    place, value = detail["loc"], detail["input"]
    if detail["type"] == "json_invalid":
        return Fault(400, f"the request cannot be read as JSON: {detail['ctx']['error']}")
    if not place:
        return Fault(400, f"the request is {format_value(value)}; it must be an object")
    place = _known(kind, place) or place
    allowed = kind.ALLOWED.get(_pattern(place), "of another type")
    path = _path(place)
    if detail["type"] == "missing":
        return Fault(400, f"{path} is missing; it must be {allowed}", path)
    most = detail.get("ctx", {}).get("max_length")
    if detail["type"] == "string_too_long" and "at most" not in allowed:
        text = f"{path} has {len(value)} characters; at most {most} are allowed"
        return Fault(400, text, path)
    if detail["type"] == "too_long" and "at most" not in allowed and " to " not in allowed:
        return Fault(400, f"{path} has {len(value)} entries; at most {most} are allowed", path)
    if detail["type"] in ("too_long", "too_short"):
        return Fault(400, f"{path} has {len(value)} entries; it must be {allowed}", path)
    return Fault(400, f"{path} is {format_value(value)}; it must be {allowed}", path)


def _meant(kind: type[Payload], details: list[ErrorDetails]) -> ErrorDetails:
    """The first error. For a field of several types pydantic has one for each type: the one that
    goes deepest into the value is of its actual type.
    """
    first = _known(kind, details[0]["loc"])
    known = [(_known(kind, one["loc"]), one) for one in details[:_MOST_ERRORS]]
    _, meant = max(
        (pair for pair in known if pair[0][: len(first)] == first), key=lambda pair: len(pair[0])
    )
    return meant


def _known(kind: type[Payload], place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """A field path without the types that pydantic tried for a field of several, and without the
    parts deeper than the known fields.
    """
    found: tuple[int | str, ...] = ()
    for part in place:
        if _pattern((*found, part)) in kind.ALLOWED:
            found = (*found, part)
    return found


def _pattern(place: tuple[int | str, ...]) -> str:
    return ".".join("*" if isinstance(part, int) else part for part in place)


def _path(place: tuple[int | str, ...]) -> str:
    """A path in the form of OpenAI's errors: messages[0].role."""
    path = ""
    for part in place:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{_name(part)}" if path else _name(part)
    return path


def _name(part: str) -> str:
    return part if part.isprintable() and len(part) <= _MAX_NAME else reprlib.repr(part)


def format_value(value: Any) -> str:
    """A short form of a value; null, true and false are written as in JSON."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return reprlib.repr(value)
