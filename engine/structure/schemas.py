"""Schemas: the parts of a JSON Schema that can be followed, and a schema without the others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import unquote

Node = dict[str, Any]

# Keys whose values are maps of names to schemas. The names may look like keys.
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
# Keys whose values are not schemas, even if they look like schemas.
_VALUES = frozenset(("const", "enum", "default", "examples", "example", "required"))
# Formats for which llguidance has expressions; all others are remarks for people.
_FORMATS = frozenset(
    (
        *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6"),
        *("uuid", "uri", "unknown"),
    )
)
# Keys that llguidance refuses, with the values that have no effect.
_NOT_FOLLOWED: dict[str, tuple[object, ...]] = {
    "not": (False,),
    "if": (),
    "contains": (),
    "propertyNames": (True, {}, {"type": "string"}),
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
# Keys without an effect if another key is missing, which is not followed.
_COMPANIONS = ("then", "else", "minContains", "maxContains", "$dynamicAnchor", "$recursiveAnchor")
# Expressions with lookaround or references to earlier groups cannot be followed.
_NO_EXPRESSION = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\\[1-9bB]|\\k<)")
# A brace that begins no count is itself in JavaScript, whose expressions a schema has.
_BRACE = re.compile(r"(?P<kept>\\(?:[pPux]\{[^}]*\}|.))|\{(?!\d+(?:,\d*)?\})", re.DOTALL)
# Keys that may have null as their value. For all others serializers write null if they are not
# stated.
_NULLS = frozenset(("const", "default", "example", "examples"))
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# The largest numbers that llguidance compares with; larger ones are not meant literally.
_MOST_NUMBER, _LEAST_INTEGER = 10**18, -(2**63) + 1024
_DRAFTS = "json-schema.org/"
_DEEPEST = 200  # The compiler allows less.
_MOST_COMPARED = 20_000  # alternatives, properties and constants; 10 ms at most
_MOST_LETTERS = 4096  # of names that others must differ from
_ANY_NAME = r"^[\s\S]*$"
# An expression that states the beginning of a name, or the whole name, and nothing else.
_START = re.compile(r"\^(?P<text>(?:[^\\.+*?()|\[\]{}^$]|\\\W)+)(?P<more>\.[*+])?(?P<ends>\$)?")


class Loosened(NamedTuple):
    """A schema without the parts that cannot be followed.

    Attributes:
        left_out: JSON pointers to those parts, in the original schema.
    """

    schema: Any
    left_out: tuple[str, ...]


def loosened(schema: Any) -> Loosened:
    """A schema without the parts that cannot be followed. A value that matches it may not match the
    original.

    Keys without an effect are left out silently, such as unknown formats. Alternatives of `oneOf`
    become those of `anyOf`.
    """
    left_out: list[str] = []
    change = partial(_loosened, alternatives=_Alternatives(schema), left_out=left_out)
    return Loosened(mapped(schema, change), tuple(left_out))


def with_spelled_names(schema: Any) -> Any:
    """A schema that allows one spelling only for names of unstated properties.

    Otherwise a reply may write a stated name again, as `\\u0061`, with another value, which
    replaces the first one when it is read. With `patternProperties` this works if each pattern
    states the beginning of a name, as `^x-` does, because llguidance cannot follow the negation of
    other expressions.
    """
    return mapped(schema, lambda node, _place: _with_spelled_names(node))


def mapped(schema: Any, change: Callable[[Node, str], Node], place: str = "#") -> Any:
    """A schema with each schema in it changed, the outer ones first.

    Args:
        change: called with a schema that is an object, and its place as a JSON pointer.
    """
    return _mapped(schema, change, place, 0)


def _mapped(value: Any, change: Callable[[Node, str], Node], place: str, depth: int) -> Any:
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [
            _mapped(one, change, f"{place}/{number}", depth + 1) for number, one in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    made: Node = {}
    for key, inner in change(value, place).items():
        at = f"{place}/{_escaped(key)}"
        if key in _MAPS and isinstance(inner, dict):
            made[key] = {
                name: _mapped(one, change, f"{at}/{_escaped(name)}", depth + 2)
                for name, one in inner.items()
            }
        elif key in _VALUES or key.startswith("x-"):
            made[key] = inner
        else:
            made[key] = _mapped(inner, change, at, depth + 1)
    return made


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _loosened(node: Node, place: str, *, alternatives: _Alternatives, left_out: list[str]) -> Node:
    found = dict(node)

    def leave_out(key: str) -> None:
        del found[key]
        left_out.append(f"{place}/{_escaped(key)}")

    for key in [key for key, one in found.items() if one is None and key not in _NULLS]:
        del found[key]
    for key, silent in _NOT_FOLLOWED.items():
        if key not in found:
            continue
        if any(_equal(found[key], one) for one in silent):
            del found[key]
        else:
            leave_out(key)
    for key in _COMPANIONS:
        found.pop(key, None)
    if isinstance(found.get("format"), str) and found["format"] not in _FORMATS:
        del found["format"]
    if isinstance(found.get("$schema"), str) and _DRAFTS not in found["$schema"]:
        del found["$schema"]
    if isinstance(pattern := found.get("pattern"), str):
        found["pattern"] = _BRACE.sub(lambda one: one["kept"] or r"\{", pattern)
        if _NO_EXPRESSION.search(pattern):
            leave_out("pattern")
    if not _name_types(found):
        leave_out("type")
    for key in _COUNTS:
        if isinstance(one := found.get(key), float) and one.is_integer():
            found[key] = int(one)
    _limit(found)
    patterns = found.get("patternProperties")
    if isinstance(patterns, dict) and any(map(_NO_EXPRESSION.search, patterns)):
        leave_out("patternProperties")
        found.pop("additionalProperties", None)  # It would hold for those names, too.
    if not set(_names(found.get("required"))).issuperset(_names(found.get("properties"))):
        for key in ("minProperties", "maxProperties"):
            if key in found:
                leave_out(key)
    choices = found.get("oneOf")
    if isinstance(choices, list) and choices:
        # If the alternatives are distinct, any one of them will do. llguidance does not follow
        # references to find out.
        if alternatives.are_apart(choices):
            del found["oneOf"]
        else:
            leave_out("oneOf")
        if "anyOf" in found:
            others = found.get("allOf")
            found["allOf"] = [*(others if isinstance(others, list) else ()), {"anyOf": choices}]
        else:
            found["anyOf"] = choices
    return found


def _name_types(node: Node) -> bool:
    """Write a schema's types in lower case, because Gemini's are in capitals; False if one of them
    is unknown.
    """
    stated = node.get("type")
    named = [stated] if isinstance(stated, str) else stated
    if not isinstance(named, list) or not _are_texts(named):
        return True
    found = [one.lower() for one in named]
    if found != named:
        node["type"] = found[0] if isinstance(stated, str) else found
    return _TYPES.issuperset(found)


def _limit(node: Node) -> None:
    """Tighten bounds that are too large for llguidance to compare with, such as those of an int64
    or a double. Numbers within the new bounds are within the stated ones.
    """
    stated = node.get("type")
    is_integer = "number" not in stated if isinstance(stated, (str, list)) else False
    least = _LEAST_INTEGER if is_integer else -_MOST_NUMBER
    for key in ("minimum", "exclusiveMinimum"):
        if _is_number(one := node.get(key)) and one < least:
            node[key] = least
    for key in ("maximum", "exclusiveMaximum"):
        if not is_integer and _is_number(one := node.get(key)) and one > _MOST_NUMBER:
            node[key] = _MOST_NUMBER


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _equal(one: object, other: object) -> bool:
    """Whether two values are the same as JSON, where 0 is not false."""
    return type(one) is type(other) and one == other


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(one, str) for one in values)


class _Choice(NamedTuple):
    """An alternative, with the properties that distinguish it from others.

    Attributes:
        types: of its values.
        constants: its values as JSON; None if they are not listed.
        properties: schemas of the properties that each value has, by name; empty if it need not be
            an object.
    """

    types: frozenset[str]
    constants: frozenset[str] | None
    properties: Mapping[str, Any]


class _Alternatives:
    """Compares the alternatives of each `oneOf` in a schema.

    References share definitions, so that a schema of 9 KB can have 80**3 pairs of properties to
    compare. So the comparisons of a whole schema have one limit, and each definition is read once.

    Args:
        root: the schema to which references refer. It must not change.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _MOST_COMPARED
        self._choices: dict[int, _Choice | None] = {}

    def are_apart(self, choices: list[Any]) -> bool:
        """Whether no value can match two of the choices; False if that takes too long to find
        out."""
        constants = [one["const"] for one in choices if isinstance(one, dict) and "const" in one]
        if len(constants) == len(choices):
            return len({_constant(one) for one in constants}) == len(constants)
        return all(self._apart(one, other, 3) for one, other in combinations(choices, 2))

    def _apart(self, one: Any, other: Any, depth: int) -> bool:
        mine, theirs = self._choice(one), self._choice(other)
        self._left -= 1
        if mine is None or theirs is None or depth == 0:
            return False
        if not mine.types & theirs.types:
            return self._left >= 0
        if mine.constants is not None and theirs.constants is not None:
            self._left -= min(len(mine.constants), len(theirs.constants))
            return self._left >= 0 and mine.constants.isdisjoint(theirs.constants)
        self._left -= min(len(mine.properties), len(theirs.properties))
        return self._left >= 0 and any(
            self._apart(mine.properties[name], theirs.properties[name], depth - 1)
            for name in sorted(mine.properties.keys() & theirs.properties.keys())
        )

    def _choice(self, schema: Any) -> _Choice | None:
        if id(schema) not in self._choices:
            self._choices[id(schema)] = self._read(schema)
        return self._choices[id(schema)]

    def _read(self, schema: Any) -> _Choice | None:
        if isinstance(schema, dict) and "$ref" in schema:
            schema = target(self._root, schema["$ref"])
        if not isinstance(schema, dict):
            return None
        types, properties = _types(schema), schema.get("properties")
        if types != {"object"} or not isinstance(properties, dict):
            properties = {}
        required = {*_names(schema.get("required"))}
        own = {name: one for name, one in properties.items() if name in required}
        return _Choice(types, _constants(schema), own)


_TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))


def _types(schema: Node) -> frozenset[str]:
    """The types that a value may have; an integer is a number, too."""
    stated = schema.get("type")
    named = [stated] if isinstance(stated, str) else stated
    if isinstance(named, list) and _are_texts(named):
        found = frozenset(named)
        return found | {"integer"} if "number" in found else found
    constants = _constants(schema)
    if constants is not None:
        return frozenset(_TYPE_OF.get(type(json.loads(one)), "") for one in constants)
    return _TYPES


_TYPE_OF: dict[type, str] = {
    **{str: "string", bool: "boolean", int: "integer", float: "number"},
    **{dict: "object", list: "array", type(None): "null"},
}


def _constants(schema: Node) -> frozenset[str] | None:
    """The allowed values, as JSON; None if they are not listed."""
    if "const" in schema:
        return frozenset((_constant(schema["const"]),))
    if isinstance(stated := schema.get("enum"), list):
        return frozenset(map(_constant, stated))
    return None


def _constant(value: object) -> str:
    """A value as JSON, where 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def target(schema: Any, reference: Any) -> Any:
    """The target of a reference within a schema; None if it is not there."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = schema
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _with_spelled_names(node: Node) -> Node:
    names = {*_names(node.get("properties")), *_names(node.get("required"))}
    patterns, others = node.get("patternProperties", {}), node.get("additionalProperties", True)
    if not isinstance(patterns, dict) or others is False or not (names or patterns):
        return node
    starts: set[str] = set()
    for pattern in patterns:
        found = _START.fullmatch(pattern)
        if found is None:
            return node
        text = re.sub(r"\\(\W)", r"\1", found["text"])
        (names if found["ends"] and not found["more"] else starts).add(text)
    if not patterns and (others is True or others == {}):
        expression: str | None = _ANY_NAME  # llguidance takes the names out.
    else:
        expression = _other_names(names, starts)
    if expression is None:
        return node
    by_name = {**patterns, expression: others}
    return {**node, "patternProperties": by_name, "additionalProperties": False}


def _names(stated: Any) -> list[str]:
    return (
        [one for one in stated if isinstance(one, str)] if isinstance(stated, (dict, list)) else []
    )


def _other_names(names: set[str], starts: set[str]) -> str | None:
    """An expression for all names except `names` and those that begin with one of `starts`; None if
    there are too many of them.
    """
    all_of_them = names | starts
    if sum(map(len, all_of_them)) > _MOST_LETTERS or max(map(len, all_of_them)) > 64:
        return None
    return f"^{_behind(sorted(names), sorted(starts))}$"


def _behind(ends: list[str], starts: list[str]) -> str:
    """An expression for all texts except `ends` and those that begin with one of `starts`. Both
    lists are sorted, and no start is empty.
    """
    if ends == [""] and not starts:
        return r"[\s\S]+"
    firsts = list(dict.fromkeys(one[0] for one in (*ends, *starts) if one))
    ways = [f"[^{''.join(map(_in_class, firsts))}][\\s\\S]*"]
    for first in firsts:
        inner = [one[1:] for one in starts if one[:1] == first]
        if "" not in inner:
            rest = _behind([one[1:] for one in ends if one[:1] == first], inner)
            ways.append(re.escape(first) + rest)
    return f"(?:{'|'.join(ways)}){'' if '' in ends else '?'}"


def _in_class(letter: str) -> str:
    return f"\\{letter}" if letter in "\\]^-[&~" else letter
