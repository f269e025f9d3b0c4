"""Lead: what a reply may say before its structure begins."""

from __future__ import annotations

import json
from dataclasses import dataclass

BODY = "@body"
_TEXT = "/(?s:.*)/"
# As many as templates have between thinking and content, and then some.
_BREAKS = r"/\n{1,4}/"


@dataclass(frozen=True, slots=True)
class Lead:
    """Rules of Lark, the rule `start` among them, in which the structure is called `@body`.

    Attributes:
        rules: one a line.
    """

    rules: str = f"start: {BODY}"


NO_LEAD = Lead()


def behind_tags(
    opening: str, closing: str, open_id: int | None, close_id: int | None, *, is_open: bool
) -> Lead:
    """Thinking between tags, then perhaps line breaks, then the structure.

    Args:
        opening, closing: the tags.
        open_id, close_id: their ids if they are special tokens, which no text becomes.
        is_open: whether the prompt ends with the opening tag. Otherwise a reply may do without.
    """
    begin = json.dumps(opening, ensure_ascii=False) if open_id is None else f"<[{open_id}]>"
    if close_id is None:
        # As few characters as there may be: the first closing tag ends the thinking.
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
