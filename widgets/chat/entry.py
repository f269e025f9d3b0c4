"""Entry: one message of a chat, as it is to be shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message as it is shown.

    Attributes:
        key: tells this message from the others of its chat.
        role: user, assistant, system or tool. An assistant's text is Markdown.
        author: who wrote it, as it is shown.
        clock: when it was written, as it is shown.
        thinking: what an assistant thought before it said the text, as Markdown.
        thought_tokens, thought_seconds: how many tokens that took, and how long; 0 and None where
            that is not known.
        calls: names of tools that an assistant calls, with their arguments as JSON.
        tool: name of the tool that gave the text, where it is known.
        attachments: names and texts that go along with the text.
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
    thought_tokens: int = 0
    thought_seconds: float | None = None
    calls: tuple[tuple[str, str], ...] = ()
    tool: str = ""
    attachments: tuple[tuple[str, str], ...] = ()
    note: str = ""
    growing: bool = False
    failed: bool = False
    branch: tuple[int, int] | None = None
