"""Structures over a small vocabulary: each character of ASCII, and some longer words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jsonschema
import numpy as np
from hypothesis import strategies as st
from llguidance import LLExecutor

from engine.api.structure import Structure
from engine.structure.compiler import Compiler
from engine.structure.grammar import Grammar
from engine.structure.lead import NO_LEAD, Lead
from engine.structure.matcher import Matcher, num_words
from engine.structure.rules import write
from engine.structure.words import Words

SIZE = 128
ENDS = (0, 1)
NOTHING = 2
OPEN, CLOSE = 3, 4  # special tokens, as are those of channels
CHANNEL, MESSAGE, END, START = 5, 6, 7, 8
_LONGER = ("<think>", "</think>", '{"', '":', '",', "true", "false", "null", "yes", "><", ">y")
LONGER = {word: at for at, word in enumerate(_LONGER, 14)}
_NAMES = {
    ENDS[0]: "<end>",
    ENDS[1]: "<stop>",
    NOTHING: "",
    OPEN: "[T]",
    CLOSE: "[/T]",
    CHANNEL: "<|channel|>",
    MESSAGE: "<|message|>",
    END: "<|end|>",
    START: "<|start|>",
}
SPECIAL = frozenset((OPEN, CLOSE, CHANNEL, MESSAGE, END, START))
UTF8 = [
    (_NAMES | {at: word for word, at in LONGER.items()}).get(at, chr(at)).encode()
    for at in range(SIZE)
]


@cache
def compiler(size: int = SIZE) -> Compiler:
    return Compiler(Words.of(UTF8, SPECIAL, ENDS, size))


@cache
def _compiled(structure: Structure, lead: Lead, size: int) -> Grammar:
    return compiler(size).compile(write(structure, lead), structure.kind)


def grammar(stated: object, lead: Lead = NO_LEAD, size: int = SIZE) -> Grammar:
    """The grammar of a structure as a request states it."""
    return _compiled(Structure.of(stated), lead, size)


def text_of(token_ids: Sequence[int]) -> str:
    """The text of tokens, those that end an output left out."""
    return b"".join(UTF8[token] for token in token_ids if token not in ENDS).decode()


def ids_of(text: str) -> list[int]:
    """The tokens of a text, character by character."""
    return list(text.encode())


def allowed(matcher: Matcher, size: int = SIZE) -> set[int]:
    """The tokens that a reply may go on with."""
    bits = np.full((1, num_words(size)), -1, np.int32)
    Matcher.fill([matcher], bits, LLExecutor(1))
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def check(stated: Mapping[str, Any], text: str) -> None:
    """Check that a complete reply has its structure.

    Raises:
        AssertionError, ValueError, jsonschema.ValidationError: it has not.
    """
    match stated:
        case {"json_schema": schema}:
            jsonschema.validate(json.loads(text), schema)
        case {"choice": choices}:
            assert text in choices
        case {"regex": expression}:
            assert re.fullmatch(expression, text)
        case _:
            raise AssertionError(f"{stated} is none of those")


def _array(items: dict[str, Any], least: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + 1}


def _object(properties: dict[str, Any], number: int) -> dict[str, Any]:
    required = sorted(properties)[:number]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _compound(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(st.sampled_from(["a", "bc", 'd"e']), schemas, max_size=3)
    return st.one_of(
        st.builds(_array, schemas, st.integers(0, 2)),
        st.builds(_object, properties, st.integers(0, 3)),
        st.lists(schemas, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
    )


_SIMPLE = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "string", "maxLength": 4}),
    st.sampled_from([{"enum": ["a", 'b"', 3]}, {"const": "x y"}]),
    st.integers(-50, 50).map(lambda n: {"type": "integer", "minimum": n, "maximum": n + 130}),
)
# Whatever is chosen, a reply that follows one of these ends after some hundred tokens.
STRUCTURES = st.one_of(
    st.recursive(_SIMPLE, _compound, max_leaves=5).map(lambda schema: {"json_schema": schema}),
    st.lists(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=5),
        min_size=1,
        max_size=5,
        unique=True,
    ).map(lambda choices: {"choice": choices}),
    st.sampled_from(["[0-9]{3}-[a-c]x", "(ab|a|b){2,4}", "a?b{0,3}", "x", r"\([0-9]\)[^x]"]).map(
        lambda expression: {"regex": expression}
    ),
)
