"""Rules: a structure in the notation of llguidance."""

from __future__ import annotations

import json
import re

from engine.api.errors import InvalidRequestError, cause_of
from engine.api.structure import Structure, StructureKind
from engine.structure.lead import Lead

# The model's own choice among the spellings of a text is left to it, and no tokenizer is asked.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
# Where JSON has white space, a small model that may write some goes on for as long as it may. So
# there is a blank, or a line break and an indentation, as llama.cpp's grammars of schemas have it.
_WHITE_SPACE = r"( |\n[ \t]{0,20})"
_JSON_OPTIONS = {"whitespace_pattern": _WHITE_SPACE}
# A definition in GBNF. Lark has a colon in its place.
_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def write(structure: Structure, lead: Lead) -> str:
    """The grammars, as JSON, of a reply that has a structure behind `lead`.

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
            if isinstance(value, dict):
                value = {**value, "x-guidance": _JSON_OPTIONS}
            return {"json_schema": {"x-guidance": _JSON_OPTIONS} if value is True else value}
        case StructureKind.CHOICE:
            assert isinstance(value, list)
            choices = (json.dumps(choice, ensure_ascii=False) for choice in value)
            return {"lark_grammar": f"start: {' | '.join(choices)}"}
        case StructureKind.REGEX:
            return {"lark_grammar": _regex(structure.source)}
        case StructureKind.GRAMMAR:
            return {"lark_grammar": _lark(structure.source)}


def _regex(expression: str) -> str:
    from llguidance import LLMatcher

    grammars = json.loads(LLMatcher.grammar_from_regex(expression))["grammars"]
    rules: str = grammars[0]["lark_grammar"]
    return rules


def _lark(grammar: str) -> str:
    """The grammar in Lark."""
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
