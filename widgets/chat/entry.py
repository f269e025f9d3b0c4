"""Entry: one message of a chat, as it is to be shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message as it is shown.

    Attributes:
        key: tells this message from the others of its conversation.
        role: user, assistant or system. An assistant's text is Markdown.
        author: who wrote it, as it is shown.
        clock: when it was written, as it is shown.
        thinking: what an assistant thought before it said the text, as Markdown.
        note: what is said of it: state, tokens, times.
        growing: whether more text comes.
        failed: whether the note is a sentence that says what went wrong.
        branch: its place among the messages that could stand here, counted from 1, and how many
            those are; None if it is the only one.
    """

    key: str
    role: str
    author: str
    clock: str
    text: str
    thinking: str = ""
    note: str = ""
    growing: bool = False
    failed: bool = False
    branch: tuple[int, int] | None = None
