"""Grammars that cannot be compiled are refused, with a sentence and in bounded time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from engine.api.errors import InvalidRequestError
from engine.api.structure import Structure
from engine.structure.compiler import Compiler, _on_own_thread
from engine.structure.lead import NO_LEAD
from engine.structure.rules import MAX_DEPTH, write
from engine.structure.words import Words
from tests.support.structures import ENDS, SIZE, allowed, grammar, ids_of


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def links(depth: int, *, first_last: bool = False) -> dict[str, Any]:
    """References, each to the next."""
    numbers = range(depth - 1, -1, -1) if first_last else range(depth)
    defs: dict[str, Any] = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in numbers}
    return {"$defs": {**defs, str(depth): {"type": "string"}}, "$ref": "#/$defs/0"}


def linked(depth: int, key: str) -> dict[str, Any]:
    """Schemas with nothing but the next in them, each a definition of its own."""
    inside = {"items": lambda one: one, "allOf": lambda one: [one]}[key]
    defs = {str(n): {key: inside({"$ref": f"#/$defs/{n + 1}"})} for n in range(depth)}
    return {"$defs": {**defs, str(depth): {"type": "string"}}, "$ref": "#/$defs/0"}


LOOP = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
OPTIONS = [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(5)]} for i in range(12)]
REFUSED = {
    "deep": (
        {"json_schema": nested(200)},
        "has 201 objects and lists within each other; at most 120",
    ),
    "deep references": ({"json_schema": links(614)}, "has 616 objects, lists and references"),
    "deep references backwards": ({"json_schema": links(2_496, first_last=True)}, "has 2498 obj"),
    "deep arrays": ({"json_schema": linked(1_090, "items")}, "references within each other; at m"),
    "deep allOfs": ({"json_schema": linked(1_360, "allOf")}, "references within each other; at m"),
    "a loop": ({"json_schema": {"$ref": "#"}}, "no text has this structure"),
    "a longer loop": (
        {"json_schema": {"$ref": "#/$defs/a", "$defs": LOOP}},
        "no text has this structure",
    ),
    "elsewhere": ({"json_schema": {"$ref": "http://example.com/x"}}, "not present in a registry"),
    "nothing": ({"json_schema": False}, "Unsatisfiable schema"),
    "impossible": (
        {"json_schema": {"type": "string", "minLength": 5, "maxLength": 2}},
        "minLength (5) is greater than maxLength (2)",
    ),
    "exponential": ({"json_schema": {"allOf": OPTIONS}}, "schema too large"),
    "unknown": (
        {"json_schema": {"type": "object", "not": {}}},
        "has #/not, which cannot be followed",
    ),
    "wrong": ({"json_schema": {"type": "nothing"}}, "has #/type, which cannot be followed"),
    "an open group": ({"regex": "(a"}, "unclosed group"),
    "a reference back": ({"regex": r"(a)\1"}, "backreferences are not supported"),
    "a look ahead": ({"regex": "(?=a)b"}, "look-around"),
    "no character": ({"regex": r"[^\s\S]"}, "no text has this structure"),
    "many groups": ({"regex": "(" * 50_000 + "a" + ")" * 50_000}, "invalid regex"),
    "no rule": ({"grammar": "start: nothing"}, 'unknown name: "nothing"'),
    "rules in a circle": ({"grammar": "start: a\na: b\nb: a"}, "no text has this structure"),
    "many brackets": ({"grammar": f"start: {'(' * 20_000}a"}, "too deeply nested"),
    "no GBNF": ({"grammar": 'root ::= "a'}, "cannot be read as GBNF"),
    "itself": ({"grammar": "start: @body"}, "no text has this structure"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    stated, reason = REFUSED[name]
    (kind,) = stated
    started = time.perf_counter()
    with pytest.raises(InvalidRequestError) as caught:
        grammar(stated)
    assert time.perf_counter() - started < 10.0
    assert caught.value.message.startswith(f"structure.{kind} ")
    assert reason in caught.value.message
    assert len(caught.value.message) < 500
    assert caught.value.param == "structure"


MANY = {"type": "array", "items": {"type": "string"}, "minItems": 10**6, "maxItems": 10**9}
BOUNDED = {
    "many items": {"json_schema": MANY},
    "a long text": {"json_schema": {"type": "string", "minLength": 10**6, "maxLength": 10**9}},
    "many choices": {"json_schema": {"enum": [f"value {n}" for n in range(5_000)]}},
    "counts of counts": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "a large automaton": {"regex": "[ab]*a[ab]{200}"},
    "ambiguous": {"regex": "(a|b|ab)*" * 100 + "c"},
    "doubling": {
        "grammar": "start: r0\n"
        + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(60))
        + '\nr60: "a"'
    },
    "recursive": {
        "json_schema": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}},
        }
    },
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_large_but_sound_takes_bounded_time(name: str) -> None:
    started = time.perf_counter()
    matcher = grammar(BOUNDED[name]).matcher()
    for _ in range(50):
        may = sorted(allowed(matcher) - {*ENDS})
        if not may:
            break
        matcher.accept([may[len(may) // 2]])
    assert time.perf_counter() - started < 10.0


@pytest.mark.parametrize(
    ("stated", "texts", "others"),
    [
        ({"regex": "^[0-9]{2}$"}, ["12"], ["1", "123", "x"]),
        ({"regex": "a/b"}, ["a/b"], ["a"]),
        ({"choice": ["a", 'b"\\', "a|b"]}, ["a", 'b"\\', "a|b"], ["b"]),
        ({"grammar": 'start: "a" other\nother: /[xy]/ | "z"'}, ["ax", "az"], ["a", "aq"]),
        ({"grammar": 'root ::= "a" other*\nother ::= [xy] | "z"'}, ["a", "axz"], ["x"]),
        ({"json_object": True}, ["{}", '{"a":[1, {"b": null}]}'], ["[]", "1", '{"a"}']),
        ({"json_schema": True}, ["[]", "1", '"a"', '{"a" :1}'], ["a", "{"]),
        ({"json_schema": {"type": "object"}}, ['{\n    "a": 1\n}'], ['{ \n"a": 1}', "{  }"]),
    ],
)
def test_what_structures_allow(stated: object, texts: list[str], others: list[str]) -> None:
    made = grammar(stated)
    for text in texts:
        matcher = made.matcher(ids_of(text))
        assert set(ENDS) <= allowed(matcher), text
        assert not matcher.has_failed, text
    for text in others:
        assert not set(ENDS) <= allowed(made.matcher(ids_of(text))), text


# Where stacks are unlimited a thread has 2 MB, and where little is left to a thread, less.
ON_A_SMALL_STACK = """
import sys, threading
from tests.support.structures import allowed, grammar
stated = eval(sys.stdin.read())
def follow():
    for one in stated:
        assert allowed(grammar(one).matcher())
    print("followed")
threading.stack_size(512 << 10)
thread = threading.Thread(target=follow)
thread.start()
thread.join()
"""


def test_the_deepest_that_are_allowed_need_no_stack_of_whoever_compiles() -> None:
    rules = "\n".join(f"r{n}: r{n + 1}" for n in range(9_000))
    objects: dict[str, Any] = {"type": "string"}
    for _ in range(59):
        objects = {"type": "object", "properties": {"a": objects}}
    stated = [
        {"json_schema": links(MAX_DEPTH - 2)},
        {"json_schema": linked(250, "items")},
        {"json_schema": linked(160, "allOf")},
        {"json_schema": objects},
        {"grammar": f'start: r0\n{rules}\nr9000: "a"'},
    ]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_SMALL_STACK], input=repr(stated), capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("followed\n", 0), done.stderr


def test_a_panic_of_the_compiler_is_told_to_whoever_compiles() -> None:
    with pytest.raises(ZeroDivisionError):
        _on_own_thread(lambda: 1 // 0 and None)


@pytest.mark.parametrize("rest", [{}, {"additionalProperties": False}])
def test_1500_optional_properties_can_be_written(rest: dict[str, Any]) -> None:
    properties = {f"p{n}": {"type": "string"} for n in range(1_500)}
    schema = {"type": "object", "properties": properties, **rest}
    matcher = grammar({"json_schema": schema}).matcher()
    for char in '{"p5":"x","p7":"y","p1499":""}':
        assert ord(char) in allowed(matcher)
        matcher.accept(ids_of(char))
    assert {*ENDS} <= allowed(matcher)


def test_a_schema_has_no_say_over_its_compiler() -> None:
    schema = {"type": "object", "not": {}, "x-guidance": {"lenient": True}}
    with pytest.raises(InvalidRequestError, match="#/not, which cannot be followed"):
        grammar({"json_schema": schema})


def test_the_order_of_properties_is_that_of_the_schema() -> None:
    schema = json.loads(
        '{"type": "object", "properties": {"z": {"const": 1}, "a": {"const": 2}},'
        ' "required": ["z", "a"], "additionalProperties": false}'
    )
    made = grammar({"json_schema": schema})
    assert {*ENDS} <= allowed(made.matcher(ids_of('{"z":1,"a":2}')))
    assert not allowed(made.matcher(ids_of('{"a')))


def test_a_grammar_that_wants_its_texts_spelled_gets_them_spelled() -> None:
    matcher = grammar({"grammar": '%llguidance {"no_forcing": false}\nstart: "yes" "!"'}).matcher()
    assert allowed(matcher)


def test_a_vocabulary_is_as_wide_as_the_logits() -> None:
    made = grammar({"choice": ["~", "y"]}, size=SIZE - 2)
    assert allowed(made.matcher(), SIZE) == {ord("y")}
    made = grammar({"choice": ["~", "y"]}, size=SIZE + 40)
    assert allowed(made.matcher(), SIZE + 40) == {ord("~"), ord("y")}
    with pytest.raises(ValueError, match="no token that ends a reply"):
        Words.of([b"a"], (), {7}, 5)


def test_a_word_without_end_is_left_out() -> None:
    utf8 = [b"", b"x", b"x" * 1000, b"x" * 1001, b"x" * 5000]
    made = Compiler(Words.of(utf8, (), [0], 5)).compile(
        write(Structure.of({"regex": "x+"}), NO_LEAD), "regex"
    )
    assert allowed(made.matcher(), 5) == {1, 2}
