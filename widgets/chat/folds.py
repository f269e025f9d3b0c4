"""Folds: parts of a message that are collapsed to one line: thinking, the arguments of a call, tool
results, attachments."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.cells import cell_len
from textual.content import Content
from textual.style import Style

from widgets.chat.entry import Entry
from widgets.chat.typeset import Row, Typesetter, wrap
from widgets.figures import counted, duration, size
from widgets.harmless import HARMFUL
from widgets.line import shorten

# A tool result with more rows than this is folded.
MAX_ANSWER = 3
# A click on a row with this in its style folds or unfolds the message.
FOLD = Style.from_meta({"fold": True})


class Folds:
    """Typesets the foldable parts of a message.

    Args:
        is_open: whether they are unfolded.
        shows_thinking: whether the thinking is unfolded.
    """

    def __init__(
        self, typesetter: Typesetter, width: int, *, is_open: bool, shows_thinking: bool
    ) -> None:
        self._typesetter = typesetter
        self._glyphs = typesetter.glyphs
        self._width = width
        self._is_open = is_open
        self.shows_thinking = shows_thinking

    def thinking(self, entry: Entry) -> Row:
        """The line in place of the thinking, or above it."""
        if entry.growing and not entry.text:
            parts = ["thinking…"]
        else:
            parts = ["thought ·"] if entry.thought_tokens else ["thought"]
        if entry.thought_tokens:
            parts.append(counted(entry.thought_tokens, "token"))
            if entry.thought_seconds is not None:
                parts.append(f"· {duration(entry.thought_seconds)}")
        return self._head(" ".join(parts), self.shows_thinking)

    def attachments(self, entry: Entry) -> Iterator[Row]:
        """Names and sizes of the attachments, with their texts if unfolded."""
        for name, text in entry.attachments:
            num_bytes = len(text.encode(errors="replace"))
            head = f"{self._glyphs.attachment} {name} · {size(num_bytes)}"
            yield self._head(head, self._is_open)
            if self._is_open:
                yield from self._quoted(text)

    def calls(self, entry: Entry) -> Iterator[Row]:
        """The tool calls of a reply with their arguments, in one line if they fit."""
        for name, arguments in entry.calls:
            call = f"{self._glyphs.call} {name}"
            whole = self._glyphs.fit(f"{call}({_in_one_line(arguments)})")
            if cell_len(whole) <= self._width:
                yield Row(Content.styled(whole, ".call"))
            elif not self._is_open:
                yield self._head(whole, False, ".call")
            else:
                yield self._head(call, True, ".call")
                yield from self._typesetter.code(_pretty(arguments), "json", self._width)

    def answer(self, entry: Entry) -> Iterator[Row]:
        """The result of a tool."""
        lead = f"{self._glyphs.answer} {entry.tool}: " if entry.tool else f"{self._glyphs.answer} "
        text = HARMFUL.sub("", entry.text).rstrip("\n")
        rows = list(wrap(Content(f"{lead}{text}"), self._width))
        if len(rows) <= MAX_ANSWER:
            yield from rows
            return
        about = f"{lead}{len(rows)} lines · {size(len(text.encode(errors='replace')))}"
        yield self._head(about if self._is_open else f"{about} · {text[:200]}", self._is_open)
        if self._is_open:
            yield from self._quoted(_pretty(text))

    def _head(self, text: str, is_open: bool, style: str = ".muted") -> Row:
        """The remaining line of a folded part. Copying omits its mark."""
        mark = self._glyphs.unfolded if is_open else self._glyphs.folded
        shown = self._glyphs.fit(shorten(self._glyphs.fit(text), self._width - 2))
        lead = Content.styled(f"{mark} ", ".mark").stylize(FOLD)
        return Row(Content.styled(shown, style).stylize(FOLD), lead)

    def _quoted(self, text: str) -> Iterator[Row]:
        for row in wrap(Content.styled(HARMFUL.sub("", text), ".muted"), self._width - 2):
            yield row.behind(Content("  "))


def _in_one_line(arguments: str) -> str:
    """Arguments in the form of a function call, or unchanged if they are no object."""
    found = _parsed(arguments)
    if not isinstance(found, dict):
        return arguments
    return ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in found.items())


def _pretty(text: str) -> str:
    """JSON, pretty-printed; other text unchanged."""
    found = _parsed(text)
    if not isinstance(found, (dict, list)):
        return text
    return json.dumps(found, ensure_ascii=False, indent=2)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
