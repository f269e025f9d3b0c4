"""Entry: one message of a chat, prepared for display."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message in its displayed form.

    Attributes:
        key: identifies this message within its chat.
        role: user, assistant, system or tool. An assistant's text is Markdown.
        author: its author, as shown.
        clock: its time, as shown.
        thinking: an assistant's thinking before the text, as Markdown.
        thought_tokens, thought_seconds: the tokens and the duration of the thinking; 0 and None if
            not known.
        calls: names of the tools that an assistant calls, with their arguments as JSON.
        tool: name of the tool whose result the text is, if known.
        attachments: names and texts that belong to the message.
        note: a remark on it: state, tokens, times.
        growing: whether more text follows.
        failed: whether the note is an error message.
        branch: its index among its alternatives, from 1, and their number; None if it is the only
            one.
    """

    key: str
    role: str
    author: str
    clock: str
    text: str
    thinking: str = ""
    thought_tokens: int = 0
    thought_seconds: float | None = None
    calls: tuple[tuple[str, str], ...] = ()
    tool: str = ""
    attachments: tuple[tuple[str, str], ...] = ()
    note: str = ""
    growing: bool = False
    failed: bool = False
    branch: tuple[int, int] | None = None
