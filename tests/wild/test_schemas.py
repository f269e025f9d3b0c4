"""Schemas as tools and libraries write them: what cannot be followed is left out with a word, or
refused by the client's own pointer, and what can be is followed to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from app.gateway.http.protocol.tool_choice import ForcedCalls
from engine.api.client import Submission
from engine.api.errors import InvalidRequestError
from engine.api.stream import RequestStream
from engine.structure import schemas
from engine.structure.schemas import loosened
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine
from tests.support.structures import ENDS, allowed, grammar, ids_of

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def writes(schema: object, text: str) -> bool:
    """Whether a reply that has the form of a schema may be this text."""
    return set(ENDS) <= allowed(grammar({"json_schema": schema}).matcher(ids_of(text)))


def tagged(tag: str, **properties: object) -> dict[str, Any]:
    kind = {"kind": {"const": tag}, **properties}
    return {"type": "object", "properties": kind, "required": ["kind"]}


class Case(NamedTuple):
    report: str
    schema: Any
    left_out: tuple[str, ...]
    values: list[Any]  # jsonschema says which of them have the form


CASES = {
    "names of properties": Case(
        "",
        {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z]+$"},
            "additionalProperties": NUMBER,
        },
        ("#/propertyNames",),
        [{"ab": 1}, {"A": 1}, {"ab": "x"}],
    ),
    "a set": Case(
        "VedalAI/neuro-sdk#60",
        {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}},
        ("#/properties/tags/uniqueItems",),
        [{"tags": [1, 2]}, {"tags": [1, 1]}, {"tags": 1}],
    ),
    "what must not be": Case("", {"not": TEXT, "type": ["string", "null"]}, ("#/not",), [None]),
    "a condition": Case(
        "",
        {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "if": {"required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"not": {"required": ["b"]}},
        },
        ("#/if",),
        [{"a": 1, "b": 2}, {}, {"a": 1}, {"a": "1", "b": 2}],
    ),
    "what a list has": Case(
        "",
        {"type": "array", "items": NUMBER, "contains": {"const": 1}, "minContains": 2},
        ("#/contains",),
        [[1, 1], [1], ["a"]],
    ),
    "what needs another": Case(
        "",
        {
            "properties": {"a": NUMBER, "b": NUMBER},
            "type": "object",
            "dependentRequired": {"a": ["b"]},
            "dependencies": {"b": ["a"]},
        },
        ("#/dependentRequired", "#/dependencies"),
        [{"a": 1, "b": 1}, {"a": 1}, {"a": None, "b": 1}],
    ),
    "alternatives that overlap": Case(
        "",
        {"oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]},
        ("#/oneOf",),
        [1.5, None, 1, "x"],
    ),
    "overlapping beside others": Case(
        "",
        {"anyOf": [TEXT, NUMBER], "oneOf": [{"enum": ["a", 1]}, {"enum": [1, "b"]}]},
        ("#/oneOf",),
        ["a", "b", "c", 2],
    ),
    "an expression that looks around": Case(
        "",
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)[a-z]+$"}}},
        ("#/properties/a/pattern",),
        [{"a": "b"}, {"a": "x"}, {"a": 1}],
    ),
    "how many there may be": Case(
        "",
        {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "minProperties": 1},
        ("#/minProperties",),
        [{"a": 1}, {}, {"b": "x"}],
    ),
    "deep, and under a name that is escaped": Case(
        "",
        {
            "$defs": {
                "a/b~": {"items": {"anyOf": [TEXT, {"type": "array", "not": {"const": []}}]}}
            },
            "$ref": "#/$defs/a~1b~0",
        },
        ("#/$defs/a~1b~0/items/anyOf/1/not",),
        [["x"], [[1]]],
    ),
    # What says nothing that could be followed is left out without a word.
    "formats that are not known": Case(
        "",
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "format": "color"},
                "b": {"type": "string", "format": "binary"},
                "c": {"type": "integer", "format": "int64"},
            },
        },
        (),
        [{"a": "red"}, {"b": "x", "c": 2}, {"a": 1}],
    ),
    "what changes nothing": Case(
        "",
        {
            "$schema": "https://example.com/draft",
            "type": "array",
            "uniqueItems": False,
            "minContains": 1,
            "items": {"type": "object", "propertyNames": {"type": "string"}},
            "unevaluatedItems": True,
        },
        (),
        [[{"a": 1}], [1]],
    ),
    "properties that have names of keys": Case(
        "",
        {
            "type": "object",
            "properties": {
                "not": NUMBER,
                "if": {"const": {"not": 1}},
                "uniqueItems": {"enum": [{"contains": 2}]},
                "format": TEXT,
                "pattern": {"type": "string", "default": {"not": {}}},
            },
        },
        (),
        [{"not": 1}, {"not": "x"}, {"if": {"not": 1}}, {"format": "color", "pattern": "(?=a)"}],
    ),
    "alternatives that a tag tells apart": Case(
        "",
        {"oneOf": [tagged("a", x=NUMBER), tagged("b", x=TEXT)]},
        (),
        [{"kind": "a", "x": 1}, {"kind": "b", "x": 1}, {"kind": "b", "x": "y"}, {"kind": "c"}],
    ),
    "alternatives that are references": Case(
        "",
        {
            "$defs": {"A": tagged("a"), "B": tagged("b")},
            "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        },
        (),
        [{"kind": "a"}, {"kind": "c"}],
    ),
    "constants with titles": Case(
        "",
        {"oneOf": [{"const": 1, "title": "one"}, {"const": "1"}, {"const": None}]},
        (),
        [1, "1", None, 2],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_followed_is_left_out(case: str) -> None:
    _, schema, pointers, values = CASES[case]
    made, left_out = loosened(schema)
    assert left_out == pointers
    fits = Draft202012Validator(schema).is_valid
    assert any(map(fits, values))
    for value in values:
        text = json.dumps(value, separators=(",", ":"))
        if fits(value) or not pointers:
            assert writes(made, text) == fits(value), text
    # jsonschema takes what is left for a schema, too.
    Draft202012Validator.check_schema(made)
    if pointers:
        with pytest.raises(InvalidRequestError, match=pointers[0].replace("$", r"\$")):
            grammar({"json_schema": schema})


class Foreign(NamedTuple):
    """A schema as another tool writes it, which jsonschema may not take for one."""

    report: str
    a: dict[str, Any]  # of the property `a`
    left_out: tuple[str, ...]
    written: dict[str, bool]  # texts of `a`


INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
FOREIGN = {
    "types in capitals": Foreign("", {"type": "STRING"}, (), {'"x"': True, "1": False}),
    "several in capitals": Foreign(
        "", {"type": ["Integer", "NULL"]}, (), {"1": True, '"x"': False}
    ),
    "a type that is none": Foreign("", {"type": "any"}, ("/type",), {"1": True, '"x"': True}),
    "types of Python": Foreign(
        "", {"type": ["float", "string"]}, ("/type",), {"1.5": True, '"x"': True}
    ),
    "null for what is not stated": Foreign(
        "",
        {
            **{"type": "array", "items": None, "enum": None, "required": None, "pattern": None},
            **{"properties": None, "additionalProperties": None, "anyOf": None, "$ref": None},
        },
        (),
        {'[1,"x"]': True, "1": False},
    ),
    "null that is a value": Foreign("", {"const": None}, (), {"null": True, "1": False}),
    "counts that are floats": Foreign(
        "", {"type": "string", "maxLength": 2.0}, (), {'"ab"': True, '"abc"': False}
    ),
    "bounds of int64": Foreign("", INT64, (), {"-5": True, str(2**62): True, '"x"': False}),
    "one of int64": Foreign(
        "",
        {"type": ["integer", "null"], "exclusiveMinimum": -(2**63)},
        (),
        {"-5": True, "1.5": False},
    ),
    "bounds of a double": Foreign(
        "",
        {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
        (),
        {"-1.5": True, "1e400": False},
    ),
    "a word's end": Foreign(
        "", {"type": "string", "pattern": r"\bcat\b"}, ("/pattern",), {'"a cat"': True}
    ),
    "braces": Foreign(
        "", {"type": "string", "pattern": r"^{\w{2}}$"}, (), {'"{ab}"': True, '"{a}"': False}
    ),
    "braces that stay": Foreign(
        "",
        {"type": "string", "pattern": r"^\{\p{L}{2,}[{]\\{$"},
        (),
        {r'"{ab{\\{"': True, '"{a{"': False},
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_other_tools_write_is_followed(case: str) -> None:
    _, inner, left_out, texts = FOREIGN[case]
    made, pointers = loosened({"type": "object", "properties": {"a": inner}})
    assert pointers == tuple(f"#/properties/a{one}" for one in left_out)
    for text, is_written in texts.items():
        assert writes(made, f'{{"a":{text}}}') is is_written, text


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 5, "required": True, "oneOf": [1, {}], "allOf": 3, "anyOf": None},
        {"oneOf": [{"properties": [], "required": {}, "type": 3}, {"type": ["object"]}]},
        {"oneOf": [{"$ref": "#/oneOf/0"}, {"$ref": "#/nothing"}]},
        {"patternProperties": 1, "pattern": [], "format": {}, "$schema": 1, "enum": 2},
        {"minProperties": "x", "properties": {"a": None}, "dependentRequired": 1},
    ],
)
def test_what_is_no_schema_does_no_harm(schema: Any) -> None:
    loosened(schema)
    with pytest.raises(InvalidRequestError, match=r"structure\.json_schema"):
        grammar({"json_schema": schema})


PERSON = {
    "type": "object",
    "properties": {"name": TEXT, "friend": {"$ref": "#/$defs/Person"}},
    "required": ["name"],
    "additionalProperties": False,
}


class Pointed(NamedTuple):
    report: str
    parameters: dict[str, Any]
    values: list[Any]


POINTED = {
    "a definition": Pointed(
        "vllm-project/vllm#20470",
        {
            "properties": {"who": {"$ref": "#/$defs/Person"}},
            "required": ["who"],
            "$defs": {"Person": PERSON},
        },
        [{"who": {"name": "Ann", "friend": {"name": "Bea"}}}, {}, {"who": {"friend": {}}}],
    ),
    "an older definition": Pointed(
        "",
        {
            "properties": {"who": {"$ref": "#/definitions/Name"}},
            "definitions": {"Name": {"enum": ["Ann"]}},
        },
        [{"who": "Ann"}, {"who": "Bea"}],
    ),
    "itself": Pointed(
        "sgl-project/sglang#31692",
        {
            "properties": {"next": {"$ref": "#"}, "n": NUMBER},
            "additionalProperties": False,
        },
        [{}, {"next": {"next": {"n": 2}}}, {"next": 2}, {"next": {"n": "2"}}],
    ),
    "a property": Pointed(
        "",
        {"properties": {"a": {"enum": ["x"]}, "b": {"$ref": "#/properties/a"}}, "required": ["b"]},
        [{"b": "x"}, {"b": "y"}],
    ),
    "properties that have names of values": Pointed(
        "",
        {
            "properties": {
                "default": {"$ref": "#/$defs/N"},
                "enum": {"$ref": "#/$defs/N"},
                "examples": {"type": "array", "items": {"$ref": "#/$defs/N"}},
            },
            "$defs": {"N": NUMBER},
        },
        [{"default": 1, "enum": 2, "examples": [3]}, {"enum": "x"}, {"examples": ["x"]}],
    ),
    "no pointer": Pointed(
        "",
        {"properties": {"a": {"const": {"$ref": "#"}}}, "required": ["a"]},
        [{"a": {"$ref": "#"}}, {"a": {"$ref": "#/$defs/1"}}],
    ),
    "a name of its own": Pointed(
        "",
        {
            "$id": "https://example.com/save",
            "properties": {
                "a": {"$ref": "#/$defs/N"},
                "b": {"$ref": "https://example.com/save#/$defs/N"},
            },
            "$defs": {"N": NUMBER},
        },
        [{"a": 1, "b": 2}, {"a": "x"}, {"b": "x"}],
    ),
    "somewhere else": Pointed(
        "",
        {
            "components": {
                "schemas": {"N": NUMBER, "L": {"items": {"$ref": "#/components/schemas/N"}}}
            },
            "properties": {"a": {"$ref": "#/components/schemas/L"}},
        },
        [{"a": [1]}, {"a": ["x"]}],
    ),
}


def function(parameters: dict[str, Any], name: str = "save", **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.mark.parametrize("name", ["save", None])
@pytest.mark.parametrize("case", POINTED)
def test_pointers_of_forced_calls_mean_what_they_did(case: str, name: str | None) -> None:
    _, parameters, values = POINTED[case]
    others = {
        "$defs": {"Person": {"type": "null"}},
        "properties": {"a": {"$ref": "#/$defs/Person"}},
    }
    tools = [function(others, "other"), function(parameters)]
    forced = ForcedCalls(tools, name, calls_one=False, said=("tool_choice", "save"))
    fits = Draft202012Validator({"type": "object", **parameters}).is_valid
    assert {fits(value) for value in values} == {True, False}
    for value in values:
        told = [{"name": "save", "parameters": value}] if name is None else value
        text = json.dumps(told, separators=(",", ":"))
        assert writes(forced.schema, text) == fits(value), text


def nested(levels: int, width: int) -> dict[str, Any]:
    """Definitions of objects, each with as many properties that are the next one."""
    names = [f"p{number}" for number in range(width)]
    objects = {
        f"d{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in names},
            "required": names,
        }
        for level in range(levels)
    }
    return objects | {f"d{levels}": {"type": "object"}}


WIDE = {"enum": [*range(5_000)]}
DEAR: dict[str, dict[str, Any]] = {
    "properties of properties": {
        "$defs": nested(3, 80),
        "anyOf": [{"oneOf": [{"$ref": "#/$defs/d0"}] * 32}] * 20,
    },
    "constants": {
        "$defs": {"wide": WIDE},
        "anyOf": [{"oneOf": [tagged("a", of={"$ref": "#/$defs/wide"})] * 2}] * 200,
    },
}


@pytest.mark.parametrize("case", DEAR)
def test_comparing_alternatives_has_a_bound(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """80**3 pairs of properties held the event loop for 0.9 s, and 32 alternatives for minutes."""
    reads, pairs = 0, 0
    read, apart = schemas._Alternatives._read, schemas._Alternatives._apart

    def counted_read(self: Any, schema: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(self, schema)

    def counted_apart(self: Any, one: Any, other: Any, depth: int) -> bool:
        nonlocal pairs
        pairs += 1
        return apart(self, one, other, depth)

    monkeypatch.setattr(schemas._Alternatives, "_read", counted_read)
    monkeypatch.setattr(schemas._Alternatives, "_apart", counted_apart)
    assert loosened(DEAR[case]).left_out
    assert reads <= 1_000
    assert pairs <= 30_000


OPEN_PATTERN = {"properties": {"a": NUMBER}, "patternProperties": {"^x-": NUMBER}}


@pytest.mark.parametrize(
    ("schema", "text", "is_written"),
    [
        ({"properties": {"a": NUMBER}}, r'{"a":1,"\u0061":"x"}', False),
        ({"properties": {"a": NUMBER}}, r'{"\u0061":"x"}', False),
        ({"properties": {"a": NUMBER}}, '{"a":1,"a":"x"}', False),
        ({"properties": {"a": NUMBER}}, r'{"a":1,"b\n":"x"}', True),
        ({"properties": {"a/b": NUMBER}}, r'{"a\/b":"x"}', False),
        ({"properties": {"a/b": NUMBER}}, r'{"a\u002fb":"x"}', False),
        ({"properties": {'a"b': NUMBER}}, r'{"a\u0022b":"x"}', False),
        ({"required": ["a"]}, r'{"a":1,"\u0061":2}', False),
        ({"required": ["a"]}, '{"a":1,"b":2}', True),
        ({"properties": {"a": NUMBER}, "additionalProperties": TEXT}, r'{"\u0061":"x"}', False),
        ({"properties": {"a": NUMBER}, "additionalProperties": TEXT}, '{"a":1,"ab":"x"}', True),
        ({"properties": {"a": NUMBER}, "additionalProperties": TEXT}, '{"a":1,"":"x"}', True),
        ({"properties": {"a": NUMBER}, "additionalProperties": TEXT}, '{"a":1,"ab":2}', False),
        (
            {"properties": {"^]-": NUMBER, "": TEXT}, "additionalProperties": TEXT},
            '{"^":"x"}',
            True,
        ),
        ({"allOf": [{"properties": {"a": NUMBER}}, {"properties": {"b": TEXT}}]}, '{"b":1}', False),
        (
            {"allOf": [{"properties": {"a": NUMBER}}, {"properties": {"b": TEXT}}]},
            r'{"a":1,"b":"x","\u0062":1}',
            False,
        ),
        (OPEN_PATTERN, r'{"a":1,"\u0061":"x"}', False),
        (OPEN_PATTERN, r'{"\u0078-a":"x"}', False),
        (OPEN_PATTERN, r'{"x\u002da":"x"}', False),
        (OPEN_PATTERN, '{"a":1,"x-a":2,"x":"x","b-":[],"":0}', True),
        (OPEN_PATTERN, '{"x-a":"x"}', False),
        (OPEN_PATTERN, '{"a":"x"}', False),
        (OPEN_PATTERN | {"additionalProperties": TEXT}, r'{"a":1,"\u0061":"x"}', False),
        (OPEN_PATTERN | {"additionalProperties": TEXT}, '{"a":1,"ab":"x","x":"x"}', True),
        (OPEN_PATTERN | {"additionalProperties": TEXT}, '{"a":1,"ab":2}', False),
        ({"patternProperties": {"^x-": NUMBER}}, r'{"\u0078-a":"x"}', False),
        ({"patternProperties": {r"^x\-.+$": NUMBER}}, r'{"\u0078-a":"x"}', False),
        ({"patternProperties": {"^id$": NUMBER}}, r'{"\u0069d":"x"}', False),
        ({"patternProperties": {"^id$": NUMBER}}, '{"id":1,"ids":"x","i":"x"}', True),
        (
            {"patternProperties": {"^x-": NUMBER, r"^x\.": TEXT}},
            '{"x-":1,"x.":"x","x":[]}',
            True,
        ),
        ({"properties": {"a": NUMBER}, "patternProperties": {"b": TEXT}}, '{"a":1,"ab":"x"}', True),
    ],
)
def test_a_name_is_spelled_in_one_way(schema: Any, text: str, is_written: bool) -> None:
    objects = {"type": "object", **schema}
    assert writes(objects, text) is is_written
    if is_written:
        assert Draft202012Validator(objects).is_valid(json.loads(text))


def test_any_character_may_be_a_choice() -> None:
    letters = [*map(chr, range(1, 0x180)), "\u2028", "\ufeff", "\uffff", "\U0001f600"]
    made = grammar({"choice": [f"a{one}b" for one in letters]})
    for letter in letters[31:127]:  # what this vocabulary spells
        assert set(ENDS) <= allowed(made.matcher(ids_of(f"a{letter}b"))), repr(letter)


class Refusing(ScriptedEngine):
    """Refuses structures as one does that cannot compile them."""

    def submit(self, submission: Submission, wake: Any = None) -> RequestStream:
        structure: Any = submission.sampling.get("structure")
        if structure == {"regex": "("}:
            text = "structure.regex cannot be followed: unclosed group"
            raise InvalidRequestError(text, "structure")
        return super().submit(submission, wake)


@pytest.fixture(scope="module")
def serving() -> Iterator[HttpServing]:
    with http_serving(Refusing(lambda _: "{}")) as one:
        yield one
        one.check_idle()


SET = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
MADE = {"type": "object", "properties": {"a": {"type": "array"}}}
AT = "#/properties/a/uniqueItems"
CHAT = {"messages": [{"role": "user", "content": "?"}]}
FORMAT = {"type": "json_schema", "name": "x", "schema": SET}


def strictly(is_strict: bool) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """How each interface states the same schema: the path, the field, and the request."""
    strict = {"strict": True} if is_strict else {}
    tool = function(SET, **strict)
    return {
        "a format": (
            "/v1/chat/completions",
            "response_format.json_schema.schema",
            CHAT
            | {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SET, **strict},
                }
            },
        ),
        "a call": (
            "/v1/chat/completions",
            "tools[1].function.parameters",
            CHAT | {"tools": [function({}, "other"), tool], "tool_choice": "required"},
        ),
        "a function": (
            "/v1/chat/completions",
            "tools[0].function.parameters",
            CHAT
            | {
                "tools": [tool],
                "tool_choice": {"type": "function", "function": {"name": "save"}},
            },
        ),
        "a response": (
            "/v1/responses",
            "text.format.schema",
            {"input": "?", "text": {"format": FORMAT | strict}},
        ),
        "a call of a response": (
            "/v1/responses",
            "tools[0].parameters",
            {
                "input": "?",
                "tools": [{"type": "function", "name": "save", "parameters": SET, **strict}],
                "tool_choice": "required",
            },
        ),
    }


# Those that know no `strict`.
LOOSE = {
    "vLLM's": ("/v1/completions", "guided_json", {"prompt": "?", "guided_json": SET}),
    "vLLM's later": (
        "/v1/chat/completions",
        "structured_outputs.json",
        CHAT | {"structured_outputs": {"json": json.dumps(SET)}},
    ),
    "a tool": (
        "/v1/messages",
        "tools[0].input_schema",
        CHAT
        | {
            "max_tokens": 9,
            "tools": [{"name": "save", "input_schema": SET}],
            "tool_choice": {"type": "any"},
        },
    ),
    "a message": (
        "/v1/messages",
        "output_config.format.schema",
        CHAT | {"max_tokens": 9, "output_config": {"format": FORMAT}},
    ),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("case", [*strictly(False), *LOOSE])
def test_a_header_names_what_is_left_out(serving: HttpServing, case: str, is_stream: bool) -> None:
    path, field, asked = (strictly(False) | LOOSE)[case]
    with serving.running():
        answer = serving.http.post(path, json=asked | {"stream": is_stream})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-batchdeck-loosened"] == f"{field}{AT}"
    structure = serving.engine.submissions[-1].sampling["structure"]
    assert "uniqueItems" not in json.dumps(structure)


@pytest.mark.parametrize("case", strictly(True))
def test_what_is_strict_is_refused_by_the_clients_own_pointer(
    serving: HttpServing, case: str
) -> None:
    path, field, asked = strictly(True)[case]
    answer = serving.http.post(path, json=asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert error["message"].startswith(f"{field}{AT} cannot be followed; ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"guided_choice": ["a", "a"]}, "guided_choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_form_that_is_refused_is_named_as_the_client_stated_it(
    serving: HttpServing, fields: dict[str, Any], param: str, is_stream: bool
) -> None:
    answer = serving.ask(**fields, stream=is_stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param} ")


def test_a_form_that_is_followed_has_no_header(serving: HttpServing) -> None:
    answer = serving.ask(guided_json=MADE)
    assert (answer.status_code, answer.headers.get("x-batchdeck-loosened")) == (200, None)
