"""Forms: formats of tool calls, found by rendering a reply with known calls."""

from __future__ import annotations

import ast
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.api.tools import ToolCall

NAMES = ("probealpha", "probebeta")
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"keyone": "valueone", "keytwo": 4815162},
    {"keythree": "valuetwo"},
)
# Tags in the templates of models, and other marks; text between two of them is one word.
_ATOM = re.compile(r"<[^<>]+>|\[/?[A-Z][A-Z_]*\]|```\w*|\s+|\w+|.", re.DOTALL)
_TAG = re.compile(r"<[^<>\s]|\[/?[A-Z][A-Z_]+\]")
_NAME = re.compile(r"[\w./-]+")
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r":\d+")
# A header between a call's name and its arguments, or a key between two tags, has fewer characters.
_LONGEST = 256
_DEEPEST = 64
_MOST_ENDS = 6
_DECODER = json.JSONDecoder(strict=False)  # Models write line breaks unescaped.
_ARGUMENTS = ("arguments", "parameters")
_FENCE = re.compile(r"```[ \t]*\w*")
# Brackets that may be missing after the last call's arguments, and text that follows all calls.
_MISSING = ("}", "]", "}]")
_BEHIND = re.compile(r"\s*(?:$|<|```|\[/?[A-Z])")
_PYTHON = re.compile(r"\[\s*[\w./-]+\s*\(")
_WORDS = {
    **{"True": True, "False": False, "None": None},
    **{"true": True, "false": False, "null": None},
}
_Types = Mapping[str, Mapping[str, object]]
_Texts = tuple[str, ...]


class UnreadableCallError(ValueError):
    """A text is not a call of the form, though it begins as one."""


@dataclass(frozen=True)
class Form(ABC):
    """A format of calls.

    Attributes:
        starts: texts with which a call may begin, longest first; empty if it begins with its name
            or as JSON.
        ends: tags that may follow a call, in order.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]

    def openings(self) -> tuple[str, ...]:
        """Each start up to its first white space."""
        return tuple(dict.fromkeys(start.split()[0] for start in self.starts))

    def start(self, text: str, at: int) -> int | None:
        """Where a call's own text begins, if a call may begin at this position."""
        for start in self.starts:
            if (end := _skip(text, at, start)) is not None:
                return end
        return None

    def begins(self, text: str, at: int) -> bool:
        """Whether a call's own text may begin at a position; it does not if tags are quoted."""
        return _NAME.match(text, _bare(text, at)) is not None

    def behind(self, text: str, at: int) -> int:
        """The end of the closing tags that follow this position."""
        for tag in self.ends:
            if (end := _skip(text, at, tag)) is not None:
                at = end
        return at

    def write(self, calls: Sequence[ToolCall]) -> str:
        """Write calls as a reply has them, which only the forms of `known_form` can do.

        Raises:
            NotImplementedError: the form cannot write calls.
        """
        raise NotImplementedError

    @abstractmethod
    def read(self, text: str, at: int, types: _Types) -> tuple[list[ToolCall], int]:
        """Parse the calls whose own text begins at a position; returns them and their end.

        Args:
            types: parameter types of each offered function, by name.

        Raises:
            ValueError: it is not a call.
        """


@dataclass(frozen=True)
class JsonForm(Form):
    """A call is a JSON object with a name and arguments, alone or in a list.

    Attributes:
        name, arguments, id: their keys; "" for the name if it is itself the key of the arguments.
        is_list: whether several calls are written as a list.
    """

    name: str
    arguments: str
    id: str
    is_list: bool = False

    def write(self, calls: Sequence[ToolCall]) -> str:
        entries = [{self.name: call.name, self.arguments: call.values()} for call in calls]
        start, end = self.starts[0], "".join(self.ends)
        if self.is_list:
            return f"{start}{json.dumps(entries, ensure_ascii=False)}{end}"
        texts = (json.dumps(entry, ensure_ascii=False) for entry in entries)
        return "\n".join(f"{start}\n{text}\n{end}" for text in texts)

    def begins(self, text: str, at: int) -> bool:
        return text.startswith(("{", "["), _bare(text, at))

    def read(self, text: str, at: int, types: _Types) -> tuple[list[ToolCall], int]:
        value, at = _decode_calls(text, at)
        entries = value if isinstance(value, list) else [value]
        if not entries:
            raise UnreadableCallError("a list of calls is empty")
        return [self._call(entry) for entry in entries], at

    def _call(self, entry: object) -> ToolCall:
        if isinstance(entry, dict) and isinstance(entry.get("function"), dict):
            entry = {**entry, **entry["function"]}
        if not isinstance(entry, dict):
            raise UnreadableCallError(f"a call is of type {type(entry).__name__}")
        if not self.name and len(entry) == 1:
            return made(*next(iter(entry.items())))
        keys = (self.arguments, *_ARGUMENTS)
        given = next((entry[key] for key in keys if key in entry), None)
        name = entry.get(self.name, entry.get("name"))
        return made(name, given, entry.get(self.id))


@dataclass(frozen=True)
class HeaderForm(Form):
    """A call is a header with its name, then its arguments as JSON.

    Attributes:
        header: the end of the header.
        id: the text before the call's id in the header; "" if it has no id.
        numbered: the text before the name in an id like `functions.name:0`, which ends with a
            number; None if the header has no such id.
    """

    header: str
    id: str
    numbered: str | None

    def read(self, text: str, at: int, types: _Types) -> tuple[list[ToolCall], int]:
        found = _NAME.match(text, _bare(text, at))
        if found is None:
            raise UnreadableCallError("a call has no name")
        name, at, call_id = found[0], found.end(), None
        if self.header:
            end = text.find(self.header, at, at + _LONGEST)
            if end < 0:
                raise UnreadableCallError("the header of a call has no end")
            rest, at = text[at:end], end + len(self.header)
            if self.id and self.id in rest:
                call_id = rest.partition(self.id)[2].strip()
            elif self.numbered is not None and (number := _NUMBER.match(rest)) is not None:
                call_id = f"{self.numbered}{name}{number[0]}"
        given, at = decode(text, at)
        return [made(name, given, call_id)], at


@dataclass(frozen=True)
class TagForm(Form):
    """A call is its name, then each argument separately, with key and value between tags.

    Attributes:
        named: the text after the name.
        key: the text before the key of each argument.
        text, other: the text after the key, before a text value, or before any other.
        value: the text after the value.
    """

    named: str
    key: str
    text: str
    other: str
    value: str

    def read(self, text: str, at: int, types: _Types) -> tuple[list[ToolCall], int]:
        found = _NAME.match(text, _bare(text, at))
        if found is None:
            raise UnreadableCallError("a call has no name")
        name, at = found[0], found.end()
        if self.named.strip():
            behind = _skip(text, at, self.named)
            if behind is None:
                raise UnreadableCallError("the name of a call has no end")
            at = behind
        given: dict[str, object] = {}
        stated = types.get(name, {})
        while (start := _skip(text, at, self.key)) is not None:
            key, value, at = self._argument(text, start)
            given[key] = _typed(value, stated.get(key))
        if not given and not self._ends(text, at):
            raise UnreadableCallError("the arguments of a call have no end")
        return [made(name, given)], at

    def _argument(self, text: str, at: int) -> tuple[str, str | tuple[str], int]:
        """Parse an argument; its value is in a tuple if it is known not to be text."""
        places = [
            (place, tag, is_text)
            for tag, is_text in ((self.text, True), (self.other, False))
            if (place := text.find(tag.strip(), at, at + _LONGEST)) >= 0
        ]
        if not places:
            raise UnreadableCallError("the key of an argument has no end")
        place, tag, is_text = min(places, key=lambda one: one[0])
        key, start = text[at:place].strip(), place + len(tag.strip())
        end = self._end(text, start)
        value = text[start:end]
        before, behind = tag[len(tag.rstrip()) :], self.value[: -len(self.value.lstrip())]
        value = value.removeprefix(before).removesuffix(behind)
        at = end + len(self.value.strip())
        return key, value if is_text or self.text == self.other else (value,), at

    def _end(self, text: str, at: int) -> int:
        """The end of the value that begins at a position: at its tag, if another argument or the
        end of the call follows. A tag quoted in a value is followed by something else.
        """
        tag = self.value.strip()
        end = text.find(tag, at)
        while end >= 0:
            behind = end + len(tag)
            if _skip(text, behind, self.key) is not None or self._ends(text, behind):
                return end
            end = text.find(tag, behind)
        raise UnreadableCallError("the value of an argument has no end")

    def _ends(self, text: str, at: int) -> bool:
        """Whether a call's closing tag is here. One before which the turn ends was cut off."""
        closing = [tag for tag in self.ends if tag.startswith(("</", "[/"))] or self.ends[:1]
        return not closing or any(_skip(text, at, tag) is not None for tag in closing)


@dataclass(frozen=True)
class PythonForm(Form):
    """Calls are a list in Python syntax."""

    def write(self, calls: Sequence[ToolCall]) -> str:
        texts = []
        for call in calls:
            given = call.values().items()
            texts.append(f"{call.name}({', '.join(f'{key}={value!r}' for key, value in given)})")
        return f"{self.starts[0]}[{', '.join(texts)}]{''.join(self.ends)}"

    def begins(self, text: str, at: int) -> bool:
        return text.startswith("[", _bare(text, at)) or super().begins(text, at)

    def read(self, text: str, at: int, types: _Types) -> tuple[list[ToolCall], int]:
        at = _bare(text, at)
        is_list = text.startswith("[", at)
        at = _bare(text, at + is_list)
        calls: list[ToolCall] = []
        while not text.startswith("]", at) and (is_list or not calls):
            call, at = self._call(text, at)
            calls.append(call)
            if not is_list:
                break
            at = _bare(text, at)
            if text.startswith(",", at):
                at = _bare(text, at + 1)
            elif not text.startswith("]", at):
                raise UnreadableCallError("a list of calls has no end")
        if not calls:
            raise UnreadableCallError("a list of calls is empty")
        return calls, at + is_list

    def _call(self, text: str, at: int) -> tuple[ToolCall, int]:
        found = _NAME.match(text, at)
        if found is None or not text.startswith("(", found.end()):
            raise UnreadableCallError("a call has no name")
        source, end = _brackets(text, found.end())
        try:
            node = ast.parse(f"call{source}", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableCallError(f"a call is not Python: {type(error).__name__}") from None
        if not isinstance(node, ast.Call) or node.args:
            raise UnreadableCallError("the arguments of a call have no names")
        given = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise UnreadableCallError("an argument of a call has no name")
            given[keyword.arg] = ast.literal_eval(_JsonWords().visit(keyword.value))
        return made(found[0], given), end


class _JsonWords(ast.NodeTransformer):
    """Replaces JSON's words by Python's, because models mix them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node


@dataclass(frozen=True)
class ObjectForm(Form):
    """A call is its name, then an object without quotes around keys.

    Attributes:
        quote: the quote around a text.
    """

    quote: str

    def read(self, text: str, at: int, types: _Types) -> tuple[list[ToolCall], int]:
        found = _NAME.match(text, _bare(text, at))
        if found is None:
            raise UnreadableCallError("a call has no name")
        given, at = self._value(text, found.end(), 0)
        return [made(found[0], given)], at

    def _value(self, text: str, at: int, depth: int) -> tuple[object, int]:
        at = _bare(text, at)
        if depth > _DEEPEST:
            raise UnreadableCallError("the arguments of a call are nested too deep")
        if text.startswith(self.quote, at):
            return self._quoted(text, at)
        if text.startswith(("{", "["), at):
            return self._collection(text, at, depth)
        word = _WORD.match(text, at)
        if word is not None and word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        return decode(text, at)

    def _quoted(self, text: str, at: int) -> tuple[str, int]:
        start = at + len(self.quote)
        end = text.find(self.quote, start)
        if end < 0:
            raise UnreadableCallError("a text among the arguments has no end")
        return text[start:end], end + len(self.quote)

    def _collection(self, text: str, at: int, depth: int) -> tuple[object, int]:
        is_map = text[at] == "{"
        close = "}" if is_map else "]"
        entries: dict[str, object] = {}
        at = _bare(text, at + 1)
        while not text.startswith(close, at):
            key = str(len(entries))
            if is_map:
                key, at = self._key(text, at)
            entries[key], at = self._value(text, at, depth + 1)
            at = _bare(text, at)
            if text.startswith(",", at):
                at = _bare(text, at + 1)
            elif not text.startswith(close, at):
                raise UnreadableCallError("the arguments of a call have no end")
        return entries if is_map else [*entries.values()], at + 1

    def _key(self, text: str, at: int) -> tuple[str, int]:
        if text.startswith(self.quote, at):
            key, at = self._quoted(text, at)
            end = text.find(":", at, at + _LONGEST)
        else:
            end = text.find(":", at, at + _LONGEST)
            key = text[at:end].strip().strip('"')
        if end < 0:
            raise UnreadableCallError("the key of an argument has no end")
        return key, end + 1


@dataclass(frozen=True)
class _Probe:
    """A text with the calls of `NAMES`, or only the first.

    Attributes:
        first: where the name of the first call begins.
        frame, ids: see `form_of`.
    """

    text: str
    first: int
    frame: str
    ids: Sequence[str]

    @property
    def head(self) -> str:
        return self.text[: self.first]

    def tags(
        self, head: str, end: int, second: str = NAMES[1], closed: str = ""
    ) -> tuple[_Texts, _Texts]:
        """Find the starts and the ends of calls.

        Args:
            head: the text before the first call's own text.
            end: the end of that call's own text.
            second: the beginning of the second call's own text.
            closed: the text after the last value of a call.
        """
        value = str(ARGUMENTS[1]["keythree"])
        last_value = self.text.find(value, end)
        again = self.text.rfind(second, end, max(end, last_value))
        between, last = "", self.text[end:]
        if again >= 0:
            between = self.text[end:again]
            last = self.text[last_value + len(value) :].removeprefix(closed)
            # Closing brackets of a call's arguments are not tags.
            last = last[
                next((m.start() for m in re.finditer(r"[^\s\\\"'}\])]", last)), len(last)) :
            ]
        starts = _starts(head, between, last, self.frame)
        return starts, _ends(last, starts)


def form_of(text: str, frame: str, ids: Sequence[str] = ()) -> Form | None:
    """Find the form of the calls in a text; None if they are not found.

    Args:
        text: a turn that calls `NAMES`, or the first of them, with `ARGUMENTS`, to its end or
            beyond.
        frame: the text before a reply without calls.
        ids: ids of the calls.
    """
    text = text[len("".join(_common(frame, text))) :]
    value = text.find(str(ARGUMENTS[0]["keyone"]))
    first = text.rfind(NAMES[0], 0, value) if value >= 0 else -1
    if first < 0:
        return None
    probe = _Probe(text, first, frame, ids)
    for find in (_json_form, _python_form, _header_form, _object_form, _tag_form):
        if (form := find(probe)) is not None:
            return form
    return None


# How models write calls if their templates write none, by a text in the template or the vocabulary.
# The first match counts.
_KNOWN = (
    ("<|tool_call_start|>", PythonForm(("<|tool_call_start|>",), ("<|tool_call_end|>",))),  # LFM2
    (
        "<|tool_call|>",  # Granite 3, Phi-4
        JsonForm(("<|tool_call|>",), ("<|/tool_call|>",), "name", "arguments", "id", True),
    ),
    ("[TOOL_CALLS]", JsonForm(("[TOOL_CALLS]",), (), "name", "arguments", "id", True)),  # Mistral
    (
        "<tool_call>",  # taught to Hermes, and many others
        JsonForm(("<tool_call>",), ("</tool_call>",), "name", "arguments", "id"),
    ),
)


def known_form(source: str) -> Form | None:
    """The known form for a template in which none is found.

    Args:
        source: the template's source, and the added tokens.
    """
    return next((form for mark, form in _KNOWN if mark in source), None)


def _json_form(probe: _Probe) -> JsonForm | None:
    text = probe.text
    for place in (at for at, char in enumerate(probe.head) if char in "{["):
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if end < probe.first or (keys := _keys(value, probe.ids)) is None:
            continue
        # A second call has its own tags, or is in the same list.
        again = text.find(NAMES[1], end)
        second = text[max(text.rfind("{", end, again), end) : again + 1] if again >= 0 else ""
        return JsonForm(*probe.tags(text[:place], end, second or NAMES[1]), *keys)
    return None


def _keys(value: object, ids: Sequence[str]) -> tuple[str, str, str] | None:
    """The keys of name, arguments and id in a value with a call; None if there is no call."""
    if isinstance(value, list):
        return next((keys for one in value if (keys := _keys(one, ids)) is not None), None)
    if not isinstance(value, dict):
        return None
    if _is_arguments(value.get(NAMES[0])):
        return "", "", ""
    found = {
        kind: key
        for key, one in value.items()
        for kind, is_it in (
            ("name", one == NAMES[0]),
            ("arguments", _is_arguments(one)),
            ("id", bool(ids) and one == ids[0]),
        )
        if is_it
    }
    if "name" in found and "arguments" in found:
        return found["name"], found["arguments"], found.get("id", "id")
    return next((keys for one in value.values() if (keys := _keys(one, ids)) is not None), None)


def _is_arguments(value: object) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return value == ARGUMENTS[0]


def _python_form(probe: _Probe) -> PythonForm | None:
    at = probe.head.rindex("[") if probe.head.rstrip().endswith("[") else probe.first
    try:
        calls, end = PythonForm((), ()).read(probe.text, at, {})
    except ValueError:
        return None
    if calls[0] != made(NAMES[0], ARGUMENTS[0]):
        return None
    return PythonForm(*probe.tags(probe.text[:at], end))


def _header_form(probe: _Probe) -> HeaderForm | None:
    text, start = probe.text, probe.first + len(NAMES[0])
    last = text.find(str(ARGUMENTS[0]["keyone"]), start)
    for place in (at for at in range(start, last) if text[at] in '{"'):
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if not _is_arguments(value):
            continue
        head, header, before = probe.head, text[start:place], ""
        for call_id in probe.ids[:1]:
            if call_id in header:
                before, _, header = header.partition(call_id)
        numbered = None
        if _NUMBER.match(header) is not None:
            words = _ATOM.findall(head)
            last_tag = max((n for n, atom in enumerate(words) if _TAG.match(atom)), default=-1)
            numbered = "".join(words[last_tag + 1 :]).strip()
        tail = header.split()[-1] if header.split() else ""
        marks = [*_TAG.finditer(tail)]
        tail = tail[marks[-1].start() :] if marks else tail
        starts, ends = probe.tags(head, end)
        return HeaderForm(starts, ends, tail, before.strip(), numbered) if starts else None
    return None


def _object_form(probe: _Probe) -> ObjectForm | None:
    own = probe.text[probe.first + len(NAMES[0]) :]
    found = re.match(r"\s*\{\s*keyone\s*:\s*(?P<quote>\S+?)valueone(?P=quote)\s*,", own)
    if found is None:
        return None
    quote = found["quote"]
    try:
        calls, end = ObjectForm((), (), quote).read(probe.text, probe.first, {})
    except ValueError:
        return None
    if calls[0] != made(NAMES[0], ARGUMENTS[0]):
        return None
    starts, ends = probe.tags(probe.head, end, closed=quote)
    return ObjectForm(starts, ends, quote) if starts else None


def _tag_form(probe: _Probe) -> TagForm | None:
    text, at = probe.text, probe.first + len(NAMES[0])
    pieces = []
    for mark in ("keyone", "valueone", "keytwo", str(ARGUMENTS[0]["keytwo"])):
        end = text.find(mark, at)
        if end < 0:
            return None
        pieces.append(text[at:end])
        at = end + len(mark)
    before, is_text, value, other = pieces
    key = "".join(_common_end(before, value))
    named, closed = before[: len(before) - len(key)], value[: len(value) - len(key)]
    if not text.startswith(closed, at) or not all(map(str.strip, (key, is_text, other, closed))):
        return None
    starts, ends = probe.tags(probe.head, at + len(closed), closed=closed)
    return TagForm(starts, ends, named, key, is_text, other, closed) if starts else None


def _starts(head: str, between: str, last: str, frame: str) -> _Texts:
    """Texts with which a call may begin, longest first.

    Models omit the first of several tags, so each tag that does not begin a reply without calls
    counts, with the text after it.

    Args:
        head, between, last: the text before the first call, between it and the second one, and
            after the last one.
    """
    closing = {atom for atom in _ATOM.findall(last) if _TAG.match(atom) or atom.startswith("```")}
    again = _ATOM.findall(between)
    while again and (again[0] in closing or not again[0].strip("\"'}]),; \n\r\t")):
        again.pop(0)
    shown = {tag for tag in _ATOM.findall(frame) if _TAG.match(tag)}
    found = []
    for text in (head, "".join(again)):
        for name in NAMES:
            text = text.rpartition(name)[2] if name in text else text
        text = text.strip()
        atoms, at = _ATOM.findall(text), 0
        for number, atom in enumerate(atoms):
            # `<` begins a tag that contains the name, as in `<function=name>`.
            is_tag = _TAG.match(atom) or (atom == "<" and number + 1 < len(atoms))
            if not at or (is_tag and atom not in shown):
                found.append(text[at:])
            at += len(atom)
    kept = {one for one in found if not one.startswith(("</", "[/"))}
    return tuple(sorted(kept, key=lambda one: (-len(one), one)))


def _ends(last: str, starts: _Texts) -> _Texts:
    """The tags after the last call, up to the start of another one."""
    found: list[str] = []
    for atom in _ATOM.findall(last):
        if atom.isspace():
            continue
        is_tag = _TAG.match(atom) or atom.startswith("```")
        if not is_tag or any(one.startswith(atom) for one in starts) or len(found) == _MOST_ENDS:
            break
        found.append(atom)
    return tuple(found)


def _common(one: str, other: str) -> Iterator[str]:
    """The atoms that begin both texts."""
    for a, b in zip(_ATOM.findall(one), _ATOM.findall(other), strict=False):
        if a != b:
            return
        yield a


def _common_end(one: str, other: str) -> list[str]:
    """The atoms that end both texts."""
    pairs = zip(reversed(_ATOM.findall(one)), reversed(_ATOM.findall(other)), strict=False)
    found: list[str] = []
    for a, b in pairs:
        if a != b:
            break
        found.insert(0, a)
    return found


def _bare(text: str, at: int) -> int:
    """The end of the white space at a position."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _skip(text: str, at: int, literal: str) -> int | None:
    """The end of a literal at a position; None if it is not there. White space is ignored, because
    models write it as they like.
    """
    for char in literal:
        if char.isspace():
            continue
        at = _bare(text, at)
        if at >= len(text) or text[at] != char:
            return None
        at += 1
    return at


def decode(text: str, at: int) -> tuple[Any, int]:
    """Decode the JSON value at a position; returns it and its end.

    Raises:
        ValueError: there is no value.
    """
    try:
        return _DECODER.raw_decode(text, _bare(text, at))
    except json.JSONDecodeError as error:
        raise UnreadableCallError(f"a call is not JSON: {error.msg}") from None


def _decode_calls(text: str, at: int) -> tuple[Any, int]:
    """Decode the JSON value with calls at a position; returns it and its end.

    Small models miscount the brackets that close a call: those after its arguments may be missing,
    if only the end of calls follows, and there may be too many.

    Raises:
        ValueError: there is no value.
    """
    start = _bare(text, at)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        value, end = _decode_unclosed(text[start : error.pos].rstrip(), error), error.pos
        if _BEHIND.match(text, end) is None:
            raise UnreadableCallError(f"a call is not JSON: {error.msg}") from None
    while (behind := _bare(text, end)) < len(text) and text[behind] in "}]":
        end = behind + 1
    return value, end


def _decode_unclosed(text: str, error: json.JSONDecodeError) -> Any:
    """
    Args:
        error: why it is no JSON as it stands.
    """
    for closing in _MISSING if text.endswith("}") else ():
        try:
            return _DECODER.decode(text + closing)
        except json.JSONDecodeError:
            continue
    raise UnreadableCallError(f"a call is not JSON: {error.msg}") from None


def _brackets(text: str, at: int) -> tuple[str, int]:
    """The text from a position to the end of the Python brackets that open after it, and that end.
    Line breaks within strings are escaped, as Python requires.
    """
    depth, quote = 0, ""
    start, breaks = at, list[int]()
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
            elif char == "\n":
                breaks.append(at)
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth <= 0:
                ends = [*breaks, at + 1]
                starts = [start, *(place + 1 for place in breaks)]
                pieces = [text[a:b] for a, b in zip(starts, ends, strict=True)]
                return "\\n".join(pieces), at + 1
        at += 1
    raise UnreadableCallError("a call has no end")


def _typed(value: str | tuple[str], stated: object) -> object:
    """Convert an argument that is written as text.

    Args:
        value: in a tuple if it is known not to be text.
        stated: the types that the function's schema allows; None if it states none.
    """
    is_other = isinstance(value, tuple)
    text = value[0] if isinstance(value, tuple) else value
    if not is_other and isinstance(stated, frozenset) and stated <= {"string"}:
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return _python_value(text, stated)
    # A quoted text was written as JSON by the model, unless it should be plain text.
    return text if isinstance(found, str) and stated is None and not is_other else found


def begins_call(content: str, names: Sequence[str]) -> bool | None:
    """Whether a reply's content begins with a call of an offered function without tags.

    Args:
        content: the content so far.
        names: names of the functions.

    Returns:
        None while that is undecided.
    """
    begun = content.lstrip()
    fence = _FENCE.match(begun)
    if "```".startswith(begun) or (fence is not None and fence.end() == len(begun)):
        return None if names else False  # A fence, or its label, may continue.
    begun = "".join(begun[fence.end() if fence is not None else 0 :].split())
    found: bool | None = False
    for name in names:
        bare = "".join(name.split())
        for start in (f'{{"name":"{bare}"', f'[{{"name":"{bare}"', f"[{bare}("):
            if begun.startswith(start):
                return True
            if start.startswith(begun):
                found = None
    return found


def read_bare(content: str, names: Sequence[str]) -> tuple[list[ToolCall], str] | None:
    """The calls without tags at the beginning of a reply, and the text after them; None if there
    are none.

    Args:
        names: names of the offered functions; a call of another one is text.
    """
    if not begins_call(content, names):
        return None
    at = _bare(content, 0)
    fence = _FENCE.match(content, at)
    at = _bare(content, fence.end()) if fence is not None else at
    found: list[ToolCall] = []
    while content.startswith(("{", "["), at):
        try:
            calls, end = _bare_calls(content, at)
        except ValueError:
            break
        if not {call.name for call in calls} <= set(names):
            break
        found += calls
        at = _bare(content, end)
        if content.startswith((",", ";"), at):
            at = _bare(content, at + 1)
    if not found:
        return None
    rest = content[at:].strip()
    return found, rest.removeprefix("```").strip() if fence is not None else rest


def _bare_calls(content: str, at: int) -> tuple[list[ToolCall], int]:
    if _PYTHON.match(content, at) is not None:
        return PythonForm((), ()).read(content, at, {})
    value, end = _decode_calls(content, at)
    entries = value if isinstance(value, list) else [value]
    calls = []
    for entry in entries:
        given = (
            [entry[key] for key in _ARGUMENTS if key in entry] if isinstance(entry, dict) else []
        )
        if not given or not isinstance(given[0], (dict, str)):
            raise UnreadableCallError("a call has no arguments")
        calls.append(made(entry.get("name"), given[0]))
    return calls, end


def _python_value(text: str, stated: object) -> object:
    """Parse a Python value, which some templates write; otherwise a text."""
    if text.strip() in _WORDS:
        return _WORDS[text.strip()]
    if not isinstance(stated, frozenset) or stated.isdisjoint(("object", "array")):
        return text
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return found if isinstance(found, (dict, list)) else text


def types_of(tools: Sequence[Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The allowed types of each function's parameters, by its name.

    Args:
        tools: in the form of OpenAI's API.
    """
    found: dict[str, dict[str, object]] = {}
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping):
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        types = found.setdefault(str(function.get("name")), {})
        if isinstance(properties, Mapping):
            for key, schema in properties.items():
                stated = schema.get("type") if isinstance(schema, Mapping) else None
                if isinstance(stated, str):
                    types[key] = frozenset({stated})
                elif isinstance(stated, list):
                    types[key] = frozenset(map(str, stated))
    return found


def made(name: object, arguments: object, call_id: object = None) -> ToolCall:
    """Make a function call.

    Args:
        arguments: a map, or JSON of one; None is an empty map.

    Raises:
        ValueError: the name or the arguments are invalid.
    """
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call has no name")
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise ValueError(f"the arguments of a tool call are of type {type(given).__name__}")
    call = ToolCall(
        name,
        json.dumps(given, ensure_ascii=False, allow_nan=False),
        call_id if isinstance(call_id, str) and call_id else None,
    )
    # JSON can spell half a surrogate pair, which is not text and cannot be sent.
    f"{call.name}{call.arguments}{call.id}".encode()
    return call
