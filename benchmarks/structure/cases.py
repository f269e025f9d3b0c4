"""Cases: structures that people ask for, with a text that has each; and hostile ones."""

from __future__ import annotations

import json
from typing import Any

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "email": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        },
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "product": {"type": "string", "maxLength": 80},
                    "number": {"type": "integer", "minimum": 1, "maximum": 9999},
                    "colour": {"enum": ["red", "green", "blue", None]},
                },
                "required": ["product", "number"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 50,
        },
        "paid": {"type": "boolean"},
    },
    "required": ["id", "customer", "lines", "paid"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
}
WIDE = {
    "type": "object",
    "properties": {f"field_{n}": {"type": ["string", "number", "null"]} for n in range(100)},
    "required": [f"field_{n}" for n in range(0, 100, 2)],
    "additionalProperties": False,
}
_LEAVES = [{"name": f"leaf {n}", "children": []} for n in range(6)]
# What is stated, and a text that has it.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "an order": (
        {"json_schema": ORDER},
        json.dumps(
            {
                "id": "AB-123456",
                "customer": {"name": "Ada Lovelace", "email": "ada@example.com"},
                "lines": [
                    {"product": f"wool blanket, number {n}", "number": n + 1, "colour": "red"}
                    for n in range(5)
                ],
                "paid": True,
            }
        ),
    ),
    "a tree": (
        {"json_schema": TREE},
        json.dumps({"name": "root", "children": [{"name": "branch", "children": _LEAVES}]}),
    ),
    "100 fields": (
        {"json_schema": WIDE},
        json.dumps({f"field_{n}": f"the value of {n}" for n in range(100)}),
    ),
    "1,000 values": (
        {"json_schema": {"enum": [f"value number {n} of a long list" for n in range(1000)]}},
        json.dumps("value number 777 of a long list"),
    ),
    "any JSON object": (
        {"json_object": True},
        json.dumps({"items": [{"text": "some words in a row", "n": 1.5e3}] * 5}),
    ),
    "a date and a time": (
        {"regex": r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z"},
        "2026-11-25T13:45:59.123456Z",
    ),
    "free words": ({"regex": r"([a-zA-Z]+[ .,!?]*){1,200}"}, "The cat is not on the mat. " * 6),
    "100 choices": (
        {"choice": [f"answer number {n}" for n in range(100)]},
        "answer number 42",
    ),
}
_LOOP = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
_ALL_OF: list[dict[str, Any]] = [
    {"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(5)]} for i in range(12)
]
HOSTILE: dict[str, dict[str, Any]] = {
    "a loop of references": {"json_schema": {"$ref": "#/$defs/a", "$defs": _LOOP}},
    "5^12 combinations": {"json_schema": {"allOf": _ALL_OF}},
    "1,000,000 items at least": {
        "json_schema": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 10**6,
            "maxItems": 10**9,
        }
    },
    "1,000,000 characters at least": {
        "json_schema": {"type": "string", "minLength": 10**6, "maxLength": 10**9}
    },
    "4,000 optional fields": {
        "json_schema": {"type": "object", "properties": {f"p{n}": {} for n in range(4_000)}}
    },
    "counts of counts": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "counts of classes": {"regex": r"(\p{L}{0,1000}\w{0,1000}){0,1000}"},
    "2^200 states": {"regex": "[ab]*a[ab]{200}"},
    "20,000 brackets": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
}
