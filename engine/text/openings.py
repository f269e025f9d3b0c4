"""Openings: the texts that may begin a tool call, derived from a tokenizer's response template.

An expression comes with the model. It is parsed and tried here, and trying it may never end. So
everything but `states_calls` runs in the processes of `engine.text.pool`.
"""

from __future__ import annotations

import re
import string
import warnings
from collections.abc import Iterable, Iterator, Mapping
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

CALLS = "tool_calls"
# Number of first characters by which an opening is recognised, and the most openings to search for,
# each of which is matched character by character.
_LONGEST = 64
_MOST = 32
# Characters that an expression is tested with beside its openings: all of ASCII, letters that equal
# some of it except for case, and characters of 2, 3 and 4 bytes.
_PROBES = f"{string.printable}\0\x7f\u017f\u0130\u212aé中😀"


class _Start(NamedTuple):
    """A text with which every match begins.

    Attributes:
        goes_on: whether the next part of the expression follows it directly.
    """

    text: str
    goes_on: bool


_NOTHING = _Start("", True)
_ANYTHING = _Start("", False)


class Openings(NamedTuple):
    """How a model's tool calls begin.

    Attributes:
        texts: texts one of which begins every call, except a call without tags at the start of a
            reply; None if that is not certain.
        flaw: why calls with tags are not found; "" if they are.
    """

    texts: tuple[str, ...] | None
    flaw: str = ""


def states_calls(response_template: object) -> bool:
    """Whether a response template of transformers states the format of tool calls."""
    return _field(response_template) is not None


def openings(response_template: object) -> tuple[str, ...]:
    """Texts one of which begins every tool call, apart from white space before it.

    They contain special tokens by name.

    Args:
        response_template: response template of transformers.

    Returns:
        empty if nothing is certain: a call may begin with any text, or begins unmarked.
    """
    field = _field(response_template)
    match (field or {}).get("open"), (field or {}).get("open_pattern"):
        case str(literal), None:
            found = distinct([literal])
        case list(literals), None if all(isinstance(one, str) for one in literals):
            found = distinct(literals)
        case None, str(pattern):
            found = distinct(_texts(pattern))
            if found and not _are_all(found, pattern):
                return ()
        case _:
            return ()
    return found


def _field(response_template: object) -> Mapping[str, Any] | None:
    fields = response_template.get("fields") if isinstance(response_template, Mapping) else None
    field = fields.get(CALLS) if isinstance(fields, Mapping) else None
    return field if isinstance(field, Mapping) else None


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Remove leading white space, and texts that begin with another one; empty if any text is
    blank, or if there are too many.
    """
    bare = sorted({text.lstrip()[:_LONGEST] for text in texts})
    if "" in bare or len(bare) > _MOST:
        return ()
    return tuple(one for one in bare if not any(one.startswith(o) for o in bare if o != one))


def _texts(pattern: str) -> list[str]:
    """Texts with which every match of an expression begins; a blank one if that is unknown.

    It is parsed like Python's own expressions; syntax that Python does not know is not parsed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # A set within a set means something else to `regex`.
        try:
            tree = _parser.parse(pattern, re.DOTALL)
        except (re.error, Warning, RecursionError, OverflowError):
            return [""]
    if tree.state.flags & re.IGNORECASE:
        return [""]
    return [start.text for start in _starts(tree)]


def _starts(tree: Any) -> list[_Start]:
    """The starts of a sequence, without leading white space."""
    found = [_NOTHING]
    for operation, value in tree:
        if not any(start.goes_on for start in found) or len(found) > _MOST:
            break
        nexts = _starts_of(operation, value)
        found = [joined for start in found for joined in _joined(start, operation, value, nexts)]
    return list(dict.fromkeys(found))


def _joined(start: _Start, operation: Any, value: Any, nexts: list[_Start]) -> Iterator[_Start]:
    if not start.goes_on or (not start.text and _is_blank(operation, value)):
        yield start
        return
    for one in nexts:
        text = start.text + one.text
        yield _Start(text[:_LONGEST], one.goes_on and len(text) < _LONGEST)


def _starts_of(operation: Any, value: Any) -> list[_Start]:
    """The starts of one item in a sequence."""
    if operation is sre.LITERAL:
        return [_Start(chr(value), True)]
    if operation is sre.IN and all(kind is sre.LITERAL for kind, _ in value):
        return [_Start(chr(char), True) for _, char in value]
    if operation is sre.BRANCH:
        return [start for branch in value[1] for start in _starts(branch)]
    if operation is sre.SUBPATTERN:
        _, flags, _, tree = value
        return [_ANYTHING] if flags & re.IGNORECASE else _starts(tree)
    if operation is sre.ATOMIC_GROUP:
        return _starts(value)
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, most, tree = value
        once = _starts(tree)
        if most > 1:
            once = [_Start(start.text, False) for start in once]
        return once if least else [_NOTHING, *once]
    if operation is sre.ASSERT and value[0] > 0:
        # A lookahead is not part of the match, so nothing is known to follow it.
        ahead = [_Start(start.text, False) for start in _starts(value[1])]
        return ahead if all(start.text for start in ahead) else [_NOTHING]
    if operation in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
        return [_NOTHING]
    return [_ANYTHING]


def _is_blank(operation: Any, value: Any) -> bool:
    """Whether an item in a sequence matches only white space."""
    if operation is sre.LITERAL:
        return chr(value).isspace()
    if operation is sre.CATEGORY:
        return bool(value is sre.CATEGORY_SPACE)
    if operation is sre.IN:
        return all(_is_blank(*one) for one in value)
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return all(_is_blank(*one) for one in value[2])
    return False


def _are_all(found: tuple[str, ...], pattern: str) -> bool:
    """Whether an expression only matches what begins with one of the texts, as far as one differing
    character can show.

    The expression is for another library, `regex`, which may give it more meaning: `{e<=1}` after a
    text allows a mistake in it.
    """
    import regex

    try:
        expression = regex.compile(pattern, regex.DOTALL)
    except regex.error:
        return False
    for begun in {text[:length] for text in found for length in range(len(text))}:
        known = {text[len(begun)] for text in found if text.startswith(begun)}
        for char in _PROBES:
            if char in known or (not begun and char.isspace()):
                continue
            if expression.match(begun + char, partial=True) is not None:
                return False
    return True
