"""Stated: size limits of client data, by types that all gateways share.

Costs beyond a field's own bytes are limited where they arise: sampling parameters by
`engine.api.sampling`, structures and tools by their own limits, and prompt text by the context
(`ChatCodec.check_size`).
"""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.fields import FieldInfo

from engine.api.sampling import MAX_ARGUMENT_BYTES, MAX_STOP_BYTES, RANGES, as_number
from engine.api.structure import MAX_CHOICES, MAX_STRUCTURE_BYTES
from engine.api.tools import MAX_TOOLS_BYTES

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
AnyTool = Annotated[dict[str, Any], Field(max_length=MAX_TOOLS_BYTES // _ENTRY_BYTES)]
Parameters = AnyTool
Arguments = Annotated[dict[str, Any], Field(max_length=MAX_ARGUMENT_BYTES // _ENTRY_BYTES)]


def _written(arguments: object) -> object:
    """A call's arguments as text, which need not be JSON (`ToolCall.values`)."""
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null")):
        return NO_ARGUMENTS
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


NO_ARGUMENTS = "{}"
CALLED_WITH = "a JSON object, as text or as it is"
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


def ranged(name: str) -> FieldInfo:
    """The range of a sampling parameter for the schema; the engine checks it."""
    low, high = RANGES[name]
    told: FieldInfo = Field(json_schema_extra={"minimum": low, "maximum": high})
    return told


def _or_minus_one(name: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """The validator and the schema of an integer for which -1 means None."""
    told = {"type": "integer", "minimum": -1, "maximum": RANGES[name][1]}
    return BeforeValidator(partial(as_number, name)), WithJsonSchema(told)


Whole = BeforeValidator(partial(as_number, ""))


Temperature = Annotated[float, ranged("temperature")]
TopP = Annotated[float, ranged("top_p")]
TopK = Annotated[int, *_or_minus_one("top_k")]
MinP = Annotated[float, ranged("min_p")]
RepetitionPenalty = Annotated[float, ranged("repetition_penalty")]
PresencePenalty = Annotated[float, ranged("presence_penalty")]
FrequencyPenalty = Annotated[float, ranged("frequency_penalty")]
Seed = Annotated[int | None, *_or_minus_one("seed")]
MinTokens = Annotated[int, Whole, ranged("min_tokens")]
MaxTokens = Annotated[int | None, *_or_minus_one("max_tokens")]
Bias = Annotated[float, Field(json_schema_extra={"minimum": -100, "maximum": 100})]
