"""Lead: the text that a reply may have before its structure."""

from __future__ import annotations

import json
from dataclasses import dataclass

BODY = "@body"
_TEXT = "/(?s:.*)/"
# Somewhat more than templates put between thinking and content.
_BREAKS = r"/\n{1,4}/"


@dataclass(frozen=True, slots=True)
class Lead:
    """Rules in Lark, including `start`, in which the structure is called `@body`.

    Attributes:
        rules: one on each line.
    """

    rules: str = f"start: {BODY}"


NO_LEAD = Lead()


def behind_tags(
    opening: str, closing: str, open_id: int | None, close_id: int | None, *, is_open: bool
) -> Lead:
    """Thinking between tags, then optional line breaks, then the structure.

    Args:
        opening, closing: the tags.
        open_id, close_id: their ids if they are special tokens, which text never encodes to.
        is_open: whether the prompt ends with the opening tag. If not, thinking is optional.
    """
    begin = json.dumps(opening, ensure_ascii=False) if open_id is None else f"<[{open_id}]>"
    if close_id is None:
        # The match is lazy: the first closing tag ends the thinking.
        thought = f"thought[lazy]: TEXT {json.dumps(closing, ensure_ascii=False)}"
    else:
        thought = f"thought: TEXT <[{close_id}]>"
    thinking = "thought BREAKS?" if is_open else f"({begin} thought BREAKS?)?"
    return Lead(f"start: {thinking} {BODY}\n{thought}\nTEXT: {_TEXT}\nBREAKS: {_BREAKS}")


def behind_channels(start: int, channel: int, message: int, end: int) -> Lead:
    """Messages on the channel `analysis`, then the structure on the channel `final`.

    Args:
        start, channel, message, end: ids of the special tokens that enclose headers and messages.
    """
    return Lead(
        f'start: thought* <[{channel}]> "final" <[{message}]> {BODY}\n'
        f'thought: <[{channel}]> "analysis" <[{message}]> TEXT <[{end}]> <[{start}]> '
        f'"assistant"\nTEXT: {_TEXT}'
    )
