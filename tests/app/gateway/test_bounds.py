"""Each list, map, text and number that a client may state has a bound, and is refused beyond it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from app.gateway.faults import Fault
from app.gateway.http.protocol.batches import BatchLine
from app.gateway.mqtt.protocol.__main__ import json_schema
from app.gateway.mqtt.protocol.parsing import parse_request
from tests.support.chat_requests import CALLER
from tests.support.http_serving import HttpServing, http_serving

Schema = Mapping[str, Any]
HELLO = [{"role": "user", "content": "hello"}]
GOOD: dict[str, Any] = {"messages": HELLO, "prompt": "hello", "input": "hello", "max_tokens": 2}
# Larger ones are bounded by what a request may have at all, and are not made here.
LONGEST = 1 << 20
MOST = 100_000
BOUNDS = {
    "string": ("maxLength",),
    "array": ("maxItems",),
    "object": ("maxProperties",),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}
# They are read to be refused, whatever they are.
REFUSED = {("conversation",), ("prompt",)}


class Walk:
    """Goes through a schema.

    Args:
        schemas: those that it refers to, by name.
    """

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas

    def branches(self, schema: Schema) -> list[Schema]:
        """The alternatives of a schema, references followed."""
        if "$ref" in schema:
            return self.branches(self._schemas[schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return [one for branch in schema["anyOf"] for one in self.branches(branch)]
        return [schema]

    def parts(self, schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Schema]]:
        """All that is in a schema, by its path."""
        for branch in self.branches(schema):
            yield path, branch
            for name, inside in branch.get("properties", {}).items():
                yield from self.parts(inside, (*path, name))
            for name in ("items", "additionalProperties"):
                if isinstance(branch.get(name), dict):
                    yield from self.parts(branch[name], (*path, "*"))

    def unbounded(self, schema: Schema) -> list[str]:
        """The paths of values without a bound."""
        found = []
        for path, part in self.parts(schema):
            kind = part.get("type")
            if kind is None and not {"enum", "const"} & part.keys() and path not in REFUSED:
                found.append(f"{'.'.join(path)} may be anything")
            if {"enum", "const"} & part.keys() or (kind == "object" and "properties" in part):
                continue
            lacks = [name for name in BOUNDS.get(kind or "", ()) if name not in part]
            found += [f"{'.'.join(path)} has no {name}" for name in lacks]
        return found

    def beyond(self, schema: Schema) -> Iterator[tuple[str, Any]]:
        """Values that are right but for one that is beyond a bound, by the path of that."""
        for branch in self.branches(schema):
            for value in self._beyond(branch):
                yield "", value
            for name, inside in branch.get("properties", {}).items():
                for path, value in self.beyond(inside):
                    yield f"{name}.{path}".rstrip("."), {**self.least(branch), name: value}
            if isinstance(items := branch.get("items"), dict):
                for path, value in self.beyond(items):
                    yield f"*.{path}".rstrip("."), [value]
            if isinstance(values := branch.get("additionalProperties"), dict):
                for path, value in self.beyond(values):
                    yield f"*.{path}".rstrip("."), {"1": value}

    def _beyond(self, part: Schema) -> Iterator[Any]:
        if (length := part.get("maxLength", LONGEST)) < LONGEST:
            yield "x" * (length + 1)
        if (count := part.get("maxItems", MOST)) < MOST:
            yield [self.least(part["items"])] * (count + 1)
        if (count := part.get("maxProperties", MOST)) < MOST:
            values = part.get("additionalProperties")
            is_typed = isinstance(values, dict) and values.get("type") == "number"
            names = map(str, range(count + 1)) if is_typed else (f"k{n}" for n in range(count + 1))
            yield dict.fromkeys(names, self.least(values) if isinstance(values, dict) else "x")
        # A step of 1 is none for a float that is large.
        far = 1 << 11 if part.get("type") == "number" else 1
        if "maximum" in part:
            yield part["maximum"] + far
        if "minimum" in part:
            yield part["minimum"] - far

    def least(self, schema: Schema) -> Any:
        """The smallest value that is right."""
        branch = self.branches(schema)[0]
        if "enum" in branch or "const" in branch:
            return branch.get("const", next(iter(branch.get("enum", ())), None))
        match branch.get("type"):
            case "string":
                return "x"
            case "integer" | "number":
                return max(branch.get("minimum", 0), 0)
            case "array":
                return [self.least(branch["items"])] if branch.get("minItems") else []
            case "object":
                inside = branch.get("properties", {})
                return {name: self.least(inside[name]) for name in branch.get("required", ())}
        return None


def bodies(document: Mapping[str, Any]) -> dict[str, Schema]:
    """The schemas of bodies by their paths."""
    return {
        path: content["schema"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    }


@pytest.fixture(scope="module")
def serving() -> Iterator[HttpServing]:
    with http_serving() as one:
        yield one


@pytest.fixture(scope="module")
def document(serving: HttpServing) -> dict[str, Any]:
    told: dict[str, Any] = serving.http.get("/openapi.json").json()
    return told


def test_all_that_is_asked_over_http_has_a_bound(document: dict[str, Any]) -> None:
    walk = Walk(document["components"]["schemas"])
    asked = bodies(document)
    assert len(asked) >= 9
    found = {path: walk.unbounded(schema) for path, schema in asked.items()}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for one in operation.get("parameters", ()):
                found[f"{path}?{one['name']}"] = walk.unbounded(one["schema"])
    line = BatchLine.model_json_schema()
    found["a line of a batch"] = Walk(line.get("$defs", {})).unbounded(line)
    assert {path: lacks for path, lacks in found.items() if lacks} == {}


def test_all_that_is_asked_over_mqtt_has_a_bound() -> None:
    schemas = json_schema()["$defs"]
    walk = Walk(schemas)
    for name in ("ChatRequest", "ControlMessage"):
        assert [lack for lack in walk.unbounded(schemas[name]) if lack != ANY_KNOB] == []


# A knob's value is of the type of the knob, and a text of at most 4,096 characters.
ANY_KNOB = "set.* may be anything"


def test_what_is_beyond_a_bound_is_refused_over_http(
    serving: HttpServing, document: dict[str, Any]
) -> None:
    walk, found, count = Walk(document["components"]["schemas"]), [], 0
    for path, schema in bodies(document).items():
        if path in ("/v1/files", "/live/knobs"):
            continue
        known = {name for branch in walk.branches(schema) for name in branch["properties"]}
        needed = walk.least(schema) | {name: GOOD[name] for name in GOOD.keys() & known}
        for place, body in walk.beyond(schema):
            field = place.partition(".")[0]
            sent = {**needed, field: body[field]}
            if path == "/v1/responses" or (path == "/tokenize" and field != "prompt"):
                sent.pop("prompt", None)
            with serving.running():
                answer = serving.http.post(path, content=json.dumps(sent))
            error = answer.json().get("error", {})
            told = answer.status_code, error.get("type"), error.get("param", field)
            if told[:2] != (400, "invalid_request_error") or not str(told[2]).startswith(field):
                found.append((path, place, told, error.get("message")))
            count += 1
    assert found == []
    assert count > 150
    assert serving.engine.submissions == []


def test_what_is_beyond_a_bound_is_refused_over_mqtt() -> None:
    schemas, count = json_schema()["$defs"], 0
    for place, body in Walk(schemas).beyond(schemas["ChatRequest"]):
        field = place.partition(".")[0]
        sent = json.dumps({"messages": HELLO, field: body[field]}).encode()
        with pytest.raises(Fault) as caught:
            parse_request(sent, CALLER)
        assert caught.value.code == 400, place
        assert (caught.value.param or "").startswith(field), (place, caught.value.message)
        assert not caught.value.retryable
        count += 1
    assert count > 30
