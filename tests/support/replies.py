"""Replies: what an engine without a model answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from engine.api.client import Submission
from engine.api.tools import ToolCall, ToolUse

OPENING = "<tool_call>"

Replies: TypeAlias = Mapping[str, str] | Callable[[Submission], str]


def echo(submission: Submission) -> str:
    """Repeat the question, or the earlier text."""
    if submission.prompt is None:
        return f"You said: {submission.messages[-1].content}"
    told = submission.prompt
    return f"And then: {told if isinstance(told, str) else len(told)}"


def use_in(text: str) -> ToolUse | None:
    """The tools that a reply calls by `<tool_call>NAME ARGUMENTS</tool_call>`, and the rest."""
    calls = re.findall(r"<tool_call>(\S+) (.*?)</tool_call>", text)
    content = text.partition(OPENING)[0].strip()
    return ToolUse(tuple(ToolCall(*call) for call in calls), content) if calls else None


def reply_to(
    submission: Submission, replies: Replies, stops: Sequence[str]
) -> tuple[str, str | None]:
    """The reply to the last message up to the first stop string, and that; what is missing is
    echoed.
    """
    reply = (
        replies.get(submission.messages[-1].content, echo(submission))
        if isinstance(replies, Mapping) and submission.messages
        else (echo if isinstance(replies, Mapping) else replies)(submission)
    )
    first = min((stop for stop in stops if stop in reply), key=reply.find, default=None)
    return reply.partition(first)[0] if first else reply, first
