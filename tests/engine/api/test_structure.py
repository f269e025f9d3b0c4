"""Structures: what a request may state, and the sentence that refuses what it may not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams
from engine.api.structure import MAX_CHOICES, MAX_STRUCTURE_BYTES, Structure, StructureKind

SCHEMA = {"type": "object", "properties": {"z": {"const": "ä"}, "a": {}}}
STATED: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"json_schema": False},
    {"json_object": True},
    {"regex": "[0-9]+"},
    {"choice": ["yes", "no"]},
    {"grammar": "start: /a/"},
]
ONE_OF = "json_schema, json_object, regex, choice, grammar"


@pytest.mark.parametrize("stated", STATED)
def test_a_request_states_one_kind(stated: dict[str, Any]) -> None:
    params = SamplingParams().override({"structure": stated})
    assert params.structure == Structure.of(stated)
    assert params.structure is not None
    assert params.structure.stated == stated
    assert Structure(params.structure.kind, params.structure.source) == params.structure
    assert hash(params.structure) == hash(Structure.of(stated))
    assert params.override({"structure": None}).structure is None
    assert params.override({"structure": params.structure}) == params


def test_the_order_of_a_schema_is_kept() -> None:
    assert Structure.of({"json_schema": SCHEMA}).source.index('"z"') < Structure.of(
        {"json_schema": SCHEMA}
    ).source.index('"a"')


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ("regex", f"a map of one of {ONE_OF}"),
        (["regex"], f"a map of one of {ONE_OF}"),
        ({}, f"structure has nothing; it must have exactly one of {ONE_OF}"),
        ({"regex": "a", "choice": ["a"]}, "structure has 'regex', 'choice'; it must have exactly"),
        ({"xml": "a"}, "structure has 'xml'; it must have exactly one of"),
        ({7: "a"}, "structure has 7; it must have exactly one of"),
        ({"json_object": False}, "structure.json_object is False; it must be true"),
        ({"json_object": 1}, "structure.json_object is 1; it must be true"),
        ({"json_schema": None}, "structure.json_schema is 'null'; it must be a JSON Schema"),
        ({"json_schema": "{}"}, "structure.json_schema is '{}'; it must be a JSON Schema"),
        ({"json_schema": [SCHEMA]}, "it must be a JSON Schema, which is an object, true or false"),
        ({"json_schema": {"maximum": math.nan}}, "it must be a JSON Schema"),
        ({"json_schema": {"const": object}}, "it must be a JSON Schema"),
        ({"json_schema": nested(100_000)}, "it must be a JSON Schema"),
        ({"regex": ""}, "structure.regex is ''; it must be a regular expression"),
        ({"regex": b"a"}, "structure.regex is b'a'; it must be a regular expression"),
        ({"regex": "\ud800"}, "it must be a regular expression that is not empty"),
        ({"grammar": " \n"}, "structure.grammar is ' \\n'; it must be a grammar"),
        ({"choice": "yes"}, "structure.choice is 'yes'; it must be a list of 1 to 1024"),
        ({"choice": []}, "it must be a list of 1 to 1024 different texts, none of them empty"),
        ({"choice": [""]}, "different texts, none of them empty"),
        ({"choice": ["a", "a"]}, "different texts"),
        ({"choice": ["a", 1]}, "different texts"),
        ({"choice": list(map(str, range(MAX_CHOICES + 1)))}, "it must be a list of 1 to 1024"),
        ({"regex": "a" * (10 << 20)}, "structure.regex has 10485760 bytes; at most 131072"),
        (
            {"json_schema": {"const": "ä" * (MAX_STRUCTURE_BYTES // 2)}},
            f"structure.json_schema has {MAX_STRUCTURE_BYTES + 13} bytes; at most",
        ),
    ],
)
def test_what_is_no_structure_is_refused(stated: object, allowed: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams().override({"structure": stated})
    assert allowed in caught.value.message
    assert len(caught.value.message) < 400
    assert caught.value.param == "structure"


def test_the_most_that_is_allowed_is_allowed() -> None:
    assert Structure.of({"regex": "a" * MAX_STRUCTURE_BYTES})
    assert Structure.of({"choice": list(map(str, range(MAX_CHOICES)))})


def test_parts_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="structure has the kind 'xml'; it must be one"):
        Structure("xml", "a")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"structure\.json_object is 'a'; it must be"):
        Structure(StructureKind.JSON_OBJECT, "a")
    with pytest.raises(InvalidRequestError, match=r"structure\.choice is '\{'; it must be a list"):
        Structure(StructureKind.CHOICE, "{")
    with pytest.raises(InvalidRequestError, match="it must be a Structure, or `override`"):
        SamplingParams(structure={"regex": "a"})  # type: ignore[arg-type]
