"""Rules: a structure in the notation of llguidance."""

from __future__ import annotations

import json
import re
from typing import Any

from engine.api.errors import InvalidRequestError, cause_of
from engine.api.structure import Structure, StructureKind
from engine.structure.lead import Lead
from engine.structure.schemas import loosened, target, with_spelled_names

# llguidance reads JSON of 128 levels, some of which it needs itself.
MAX_NESTING = 120
# Objects, lists and references on the longest path into a schema. The deepest schemas written by
# people for APIs (FHIR, Kubernetes) have some 150.
MAX_DEPTH = 512

# The model chooses among the spellings of a text itself, without the tokenizer.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
# Where JSON allows white space, a small model may write it without end. So only a blank, or a line
# break with indentation, is allowed, as in llama.cpp's schema grammars.
_WHITE_SPACE = r"( |\n[ \t]{0,20})"
_JSON_OPTIONS = {"whitespace_pattern": _WHITE_SPACE}
_DEFINITIONS = ("$defs", "definitions")
# A definition in GBNF. Lark writes a colon instead.
_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def write(structure: Structure, lead: Lead) -> str:
    """The grammars, as JSON, of a reply with a structure after `lead`.

    Raises:
        InvalidRequestError: a grammar in GBNF cannot be read.
    """
    lead_grammar = {"lark_grammar": _OPTIONS + lead.rules}
    return json.dumps({"grammars": [lead_grammar, {"name": "body", **_body(structure)}]})


def _body(structure: Structure) -> dict[str, object]:
    value = structure.value
    match structure.kind:
        case StructureKind.JSON_OBJECT:
            return {"json_schema": {"type": "object", "x-guidance": _JSON_OPTIONS}}
        case StructureKind.JSON_SCHEMA:
            _check_depth(value)
            value = _followed(value)
            if isinstance(value, dict):
                value = {**value, "x-guidance": _JSON_OPTIONS}
            return {"json_schema": {"x-guidance": _JSON_OPTIONS} if value is True else value}
        case StructureKind.CHOICE:
            assert isinstance(value, list)
            choices = (_quoted(choice) for choice in value)
            return {"lark_grammar": f"start: {' | '.join(choices)}"}
        case StructureKind.REGEX:
            return {"lark_grammar": _regex(structure.source)}
        case StructureKind.GRAMMAR:
            return {"lark_grammar": _lark(structure.source)}


def _quoted(text: str) -> str:
    """A text as Lark has it, where DEL is not written as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _followed(schema: object) -> Any:
    """A schema in the form for llguidance.

    Raises:
        InvalidRequestError: a part of it cannot be followed.
    """
    made, left_out = loosened(schema)
    if left_out:
        text = f"structure.json_schema has {', '.join(left_out[:3])}, which cannot be followed"
        raise InvalidRequestError(f"{text}; leave it out", "structure")
    return with_spelled_names(made)


def _check_depth(schema: object) -> None:
    """
    Raises:
        InvalidRequestError: a schema is nested too deep, by itself or through its references.
    """
    for follow, most, how in (
        (False, MAX_NESTING, "objects and lists"),
        (True, MAX_DEPTH, "objects, lists and references"),
    ):
        if (depth := _depth(schema, follow=follow)) > most:
            text = f"structure.json_schema has {depth} {how} within each other; at most {most} are"
            raise InvalidRequestError(f"{text} allowed", "structure")


def _depth(schema: object, *, follow: bool) -> int:
    """The number of objects and lists on the longest path into a schema, with references if they
    are followed. A reference back to a node on the path adds nothing.
    """
    depths: dict[int, int] = {}
    entered: set[int] = set()
    waiting = [schema]
    while waiting:
        node = waiting[-1]
        if id(node) in depths or not isinstance(node, (dict, list)):
            waiting.pop()
            continue
        inside = [*(node.values() if isinstance(node, dict) else node)]
        if follow and isinstance(node, dict):
            inside = [value for name, value in node.items() if name not in _DEFINITIONS]
            inside.append(target(schema, node.get("$ref")))
        if id(node) not in entered:
            entered.add(id(node))
            waiting += [one for one in inside if id(one) not in entered]
            continue
        waiting.pop()
        depths[id(node)] = 1 + max((depths.get(id(one), 0) for one in inside), default=0)
    return depths.get(id(schema), 0)


def _regex(expression: str) -> str:
    from llguidance import LLMatcher

    grammars = json.loads(LLMatcher.grammar_from_regex(expression))["grammars"]
    rules: str = grammars[0]["lark_grammar"]
    return rules


def _lark(grammar: str) -> str:
    """Convert the grammar to Lark."""
    if _GBNF.search(grammar) is None:
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        rules: str = gbnf_to_lark(grammar)
    except Exception as error:
        raise InvalidRequestError(
            f"structure.grammar cannot be read as GBNF: {cause_of(error)}", "structure"
        ) from None
    return rules
