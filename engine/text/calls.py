"""Calls: parses the tool calls of a reply in the model's own format.

A tokenizer may define that format by expressions that come with the model and may never return. So
all of this runs in the processes of `engine.text.pool`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from engine.api.tools import ToolCall, ToolUse
from engine.text.forms import Form, decode, made, read_bare, types_of
from engine.text.openings import CALLS
from engine.text.thinking import TaggedParts, Tags

_CONTENT = "content"
# Characters passed to transformers at once, as if they streamed. It searches all of its buffer for
# the next mark, again after each: 35,000 characters with 20 calls took 317 ms at once, and 4 ms
# like this (CPU time, on two busy cores).
_PIECE = 1024
_END_OF_MESSAGE = re.compile(r"<\|(?:end|call|return)\|>")
_RECIPIENT = re.compile(r"\bto=functions\.(?P<name>[\w.-]+)")


class Calling(NamedTuple):
    """How a model's replies call tools.

    Attributes:
        is_stated: whether the tokenizer's response template states the format.
        form: the format of calls; None if it is unknown.
        tags: the tags around the thinking of a reply; None if there are none.
        has_channels: whether a reply is a sequence of messages (see `Channels`).
        special: texts of special tokens, which are not shown.
    """

    is_stated: bool = False
    form: Form | None = None
    tags: Tags | None = None
    has_channels: bool = False
    special: Sequence[str] = ()


def read_calls(
    tokenizer: Any,
    prompt: Sequence[int],
    reply: Sequence[int],
    tools: Sequence[Mapping[str, object]],
    calling: Calling,
    *,
    is_open: bool,
) -> ToolUse | None:
    """Parse the tool calls of a reply; None if it has none.

    A reply that begins with the name and arguments of an offered function, as JSON or as a Python
    list, is a call in any format, because models forget the tags.

    Args:
        tokenizer: a tokenizer of transformers.
        prompt: the end of the prompt, because the template may begin the reply.
        reply: the token ids of the whole reply.
        tools: the request's tools, which have the types of the arguments.
        is_open: whether the reply begins as thinking (`ChatCodec.is_open`).

    Raises:
        Exception: the reply cannot be read, or its calls are invalid.
    """
    if calling.has_channels and not calling.is_stated:
        return _read_channels(_text(tokenizer, reply))
    said, closes_unopened = _content(_text(tokenizer, reply), calling.tags, is_open=is_open)
    # A closing tag may also occur within an argument of a call.
    text = _text(tokenizer, reply) if closes_unopened else said
    use = _read_text(tokenizer, prompt, reply, tools, calling, text)
    if use is None or not closes_unopened:
        return use
    return replace(use, content=_content(use.content, calling.tags, is_open=False)[0])


def _read_text(
    tokenizer: Any,
    prompt: Sequence[int],
    reply: Sequence[int],
    tools: Sequence[Mapping[str, object]],
    calling: Calling,
    text: str,
) -> ToolUse | None:
    """As `read_calls`, with the reply's text behind its thinking."""
    starts = () if calling.form is None else calling.form.openings()
    if not text.lstrip().startswith(starts):
        bare = read_bare(_shown(text, calling), [str(name) for name in types_of(tools)])
        if bare is not None:
            return ToolUse(tuple(bare[0]), bare[1])
    if calling.is_stated:
        return _read_stated(tokenizer, prompt, reply, tools)
    if calling.form is None or not calling.form.starts:
        return None
    return _read_form(text, calling, types_of(tools))


def _read_form(
    text: str, calling: Calling, types: Mapping[str, Mapping[str, object]]
) -> ToolUse | None:
    form = calling.form
    assert form is not None
    calls: list[ToolCall] = []
    said, since, at = [], 0, 0
    openings = form.openings()
    while (place := _first(text, at, openings)) is not None:
        own = form.start(text, place)
        if own is None or not form.begins(text, own):
            at = place + 1
            continue
        found, end = form.read(text, own, types)
        calls += found
        said.append(text[since:place])
        since = at = form.behind(text, end)
    if not calls:
        return None
    said.append(text[since:])
    shown = [one for piece in said if (one := _shown(piece, calling).strip())]
    return ToolUse(tuple(calls), "\n\n".join(shown))


def _first(text: str, at: int, openings: Sequence[str]) -> int | None:
    """Position of the first of the openings, from `at` on."""
    places = [place for one in openings if (place := text.find(one, at)) >= 0]
    return min(places, default=None)


def _read_channels(text: str) -> ToolUse | None:
    calls, said = [], []
    for message in text.split("<|start|>"):
        header, mark, body = message.partition("<|message|>")
        if not mark:
            continue
        body = _END_OF_MESSAGE.split(body, maxsplit=1)[0]
        to = _RECIPIENT.search(header)
        channel = header.partition("<|channel|>")[2].split()[:1]
        if to is not None:
            calls.append(made(to["name"], decode(body, 0)[0]))
        elif channel != ["analysis"]:
            said.append(body)
    return ToolUse(tuple(calls), "".join(said).strip()) if calls else None


def _content(text: str, tags: Tags | None, *, is_open: bool) -> tuple[str, bool]:
    """The part of a reply after its thinking, and whether it closes thinking that it had not
    opened.
    """
    if tags is None:
        return text, False
    parts = TaggedParts(Tags(tags.open, tags.close), is_open=is_open)  # Here all tags are text.
    parts.read_token(0, text)
    parts.end("")
    return parts.split(text)[1], parts.closes_unopened


def _shown(text: str, calling: Calling) -> str:
    """Remove special tokens from a text."""
    for name in calling.special:
        text = text.replace(name, "")
    return text


def _read_stated(
    tokenizer: Any,
    prompt: Sequence[int],
    reply: Sequence[int],
    tools: Sequence[Mapping[str, object]],
) -> ToolUse | None:
    """Parse the calls of a reply in the format that its tokenizer states."""
    parser = tokenizer.get_response_parser(prefix=_text(tokenizer, prompt), tools=list(tools))
    if any(event["field"] == CALLS for event in parser.initial_events):
        # If the start of the reply is not found, the whole prompt counts as a part of it, and calls
        # quoted in its messages would be made.
        raise ValueError("the prompt contains tool calls")
    text = _text(tokenizer, reply)
    events: list[dict[str, Any]] = []
    try:
        for start in range(0, len(text), _PIECE):
            events += parser.feed(text[start : start + _PIECE])
        message, last = parser.finalize()
    except ValueError as error:
        # The message quotes the reply after its first line, which must not be logged.
        raise ValueError(str(error).partition("\n")[0]) from None
    calls = message.get(CALLS)
    if calls is None:
        return None
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls is of type {type(calls).__name__}, not a list")
    said = [message.get(_CONTENT, "")]
    values = [
        event["value"]
        for event in (*events, *last)
        if event["type"] == "region_close" and event["field"] == _CONTENT
    ]
    if values and said[0] in ("", values[-1]):
        # Of several texts, such as before and after the calls, the message has only the last one.
        said = [value for value in values if value]
    shown = _text(tokenizer, reply, shown=True)
    if not all(isinstance(one, str) and one in shown for one in said):
        raise ValueError("the content beside the tool calls is not part of the reply's text")
    return ToolUse(tuple(map(_call, calls)), "\n\n".join(said))


def _text(tokenizer: Any, token_ids: Sequence[int], *, shown: bool = False) -> str:
    """Decode token ids, with special tokens unless `shown`."""
    text: str = tokenizer.decode(
        list(token_ids), skip_special_tokens=shown, clean_up_tokenization_spaces=False
    )
    return text


def _call(entry: object) -> ToolCall:
    """Raises:
    ValueError: it is not a function call with a map of arguments.
    """
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(function, dict):
        raise ValueError("an entry of tool_calls has no function")
    return made(function.get("name"), function.get("arguments"), entry.get("id"))
