"""Stated: fields of clients' requests, with their size limits, that all gateways share.

Costs beyond a field's own bytes are limited where they arise: sampling parameters by
`engine.api.sampling`, structures and tools by their own limits, and prompt text by the context
(`ChatCodec.check_size`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from engine.api.errors import InvalidRequestError
from engine.api.sampling import (
    MAX_ARGUMENT_BYTES,
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_BYTES,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    SAMPLING_SPECS,
    SamplingParams,
    as_number,
)
from engine.api.sampling_spec import Interface, NumberRange, SamplingSpec
from engine.api.structure import MAX_CHOICES, MAX_STRUCTURE_BYTES
from engine.api.tools import MAX_TOOLS, MAX_TOOLS_BYTES

MAX_NAME = 256
_MAX_MODEL = 4096  # It may be a path.
# Of calls: some proxies keep a signature of the thinking in them.
MAX_ID = 1 << 14
# The upper limit of `max_request_bytes`. Prompt text also has to fit into the context.
MAX_TEXT = 1 << 30
MAX_PARTS = 10_000
MAX_PROMPT_TOKENS = 1 << 24
_ENTRY_BYTES = 4  # of the smallest entry of a map as JSON

Name = Annotated[str, Field(max_length=MAX_NAME)]
Model = Annotated[str, Field(max_length=_MAX_MODEL)]
Id = Annotated[str, Field(max_length=MAX_ID)]
LongText = Annotated[str, Field(max_length=MAX_TEXT)]
Stop = Annotated[str, Field(max_length=MAX_STOP_BYTES)]
Source = Annotated[str, Field(max_length=MAX_STRUCTURE_BYTES)]
Choices = Annotated[list[Source], Field(max_length=MAX_CHOICES, fail_fast=True)]
Schema = Annotated[dict[str, Any], Field(max_length=MAX_STRUCTURE_BYTES // _ENTRY_BYTES)]
Parameters = Annotated[dict[str, Any], Field(max_length=MAX_TOOLS_BYTES // _ENTRY_BYTES)]
Arguments = Annotated[dict[str, Any], Field(max_length=MAX_ARGUMENT_BYTES // _ENTRY_BYTES)]


def _stated_tool(tool: object) -> object:
    """A function without the keys that are null, as serializers write those that are not stated,
    and with its type, which some clients leave out.
    """
    if not isinstance(tool, dict):
        return tool
    named = {key: value for key, value in tool.items() if value is not None}
    if isinstance(function := named.get("function"), dict):
        stated = {key: value for key, value in function.items() if value is not None}
        named = {"type": "function", **named, "function": stated}
    return named


AnyTool = Annotated[Parameters, BeforeValidator(_stated_tool)]


def _written(arguments: object) -> object:
    """A call's arguments as text, which need not be JSON (`ToolCall.values`)."""
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null")):
        return NO_ARGUMENTS
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


NO_ARGUMENTS = "{}"
CALLED_WITH = "a JSON object, or the text of one"
CalledWith = Annotated[
    LongText,
    BeforeValidator(_written),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "maxLength": MAX_TEXT},
                {"type": "object", "maxProperties": MAX_TEXT // _ENTRY_BYTES},
                {"type": "null"},
            ],
            "default": NO_ARGUMENTS,
        }
    ),
]
# The vocabulary limits them further.
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


Whole = BeforeValidator(partial(as_number, ""))


def range_of(name: str) -> NumberRange:
    """The range of a sampling parameter that is a number."""
    allowed = SAMPLING_SPECS[name].allowed
    assert isinstance(allowed, NumberRange)
    return allowed


def _checks(name: str) -> tuple[object, ...]:
    """The validator and the schema of a sampling parameter that is a number. The engine checks
    its range.
    """
    allowed = range_of(name)
    if allowed.of_minus_one:
        schema = {"type": "integer", "minimum": -1, "maximum": allowed.high}
        return BeforeValidator(partial(as_number, name)), WithJsonSchema(schema)
    schema = Field(json_schema_extra={"minimum": allowed.low, "maximum": allowed.high})
    return (Whole, schema) if allowed.is_integer else (schema,)


Temperature = Annotated[float, *_checks("temperature")]
TopP = Annotated[float, *_checks("top_p")]
MaxTokens = Annotated[int | None, *_checks("max_tokens")]
Logprobs = Annotated[int, *_checks("logprobs")]
# Its range is checked first: it is allowed only where `logprobs` is true.
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS), Whole]
Bias = Annotated[float, Field(json_schema_extra={"minimum": -100, "maximum": 100})]
Stops = Annotated[tuple[Stop, ...], Field(max_length=MAX_STOPS, fail_fast=True)]
Tools = Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)]

# The types of sampling parameters that are no numbers.
_TYPES: Mapping[str, Any] = {
    "logit_bias": Annotated[
        dict[Name, Bias], Field(json_schema_extra={"maxProperties": MAX_BIASES})
    ],
    "stop": Stop | Stops,
    "stop_token_ids": Annotated[
        tuple[TokenId, ...], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)
    ],
    "ignore_eos": bool,
    "chat_template_kwargs": Arguments,
    "tools": Tools,
    "structure": Annotated[dict[str, Any], Field(json_schema_extra={"maxProperties": 1})],
}
_Model = TypeVar("_Model", bound=BaseModel)


def sampled(*interfaces: Interface) -> Callable[[type[_Model]], type[_Model]]:
    """Decorator: add a field to a request model for each sampling parameter that all of these
    interfaces have under one name. A field that the model declares itself stays as it is.
    """

    def extended(model: type[_Model]) -> type[_Model]:
        added: dict[str, Any] = {
            name: (_type(spec) | None, None)
            for name, spec in _fields(*interfaces)
            if name not in model.model_fields
        }
        return create_model(
            model.__name__,
            __base__=model,
            __module__=model.__module__,
            __doc__=model.__doc__,
            **added,
        )

    return extended


def sampling_allowed(*interfaces: Interface) -> dict[str, str]:
    """The allowed values of the fields that `sampled` adds, in words."""
    return {name: str(spec.allowed) for name, spec in _fields(*interfaces)}


def stated_sampling(request: BaseModel, interface: Interface) -> dict[str, Any]:
    """The stated sampling parameters of a request, by the engine's names."""
    stated = {spec.name: getattr(request, name) for name, spec in _fields(interface)}
    if isinstance(stop := stated.get("stop"), str):
        stated["stop"] = (stop,)
    return {name: value for name, value in stated.items() if value is not None}


def check_sampling(given: Mapping[str, Any], interface: Interface) -> None:
    """Check sampling parameters by the engine's names.

    Raises:
        InvalidRequestError: one is outside its range. It names the field of the interface.
    """
    try:
        SamplingParams().override(given)
    except InvalidRequestError as error:
        spec = SAMPLING_SPECS.get(error.param or "")
        field = None if spec is None else spec.names.get(interface)
        if spec is None or field in (None, spec.name):
            raise
        raise InvalidRequestError(error.message.replace(spec.name, field, 1), field) from None


@cache
def _fields(*interfaces: Interface) -> tuple[tuple[str, SamplingSpec], ...]:
    """The parameters that all of these interfaces have under one name, with that name."""
    found = []
    for spec in SAMPLING_SPECS.values():
        names = {spec.names.get(interface) for interface in interfaces}
        if len(names) == 1 and (name := names.pop()) is not None:
            found.append((name, spec))
    return tuple(found)


def _type(spec: SamplingSpec) -> Any:
    if not isinstance(spec.allowed, NumberRange):
        return _TYPES[spec.name]
    kind: Any = int if spec.allowed.is_integer else float
    if spec.allowed.of_minus_one and spec.default is None:
        kind = int | None
    return Annotated[kind, *_checks(spec.name)]
