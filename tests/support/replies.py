"""Replies: what an engine without a model answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from engine.api.client import Submission

Replies: TypeAlias = Mapping[str, str] | Callable[[Submission], str]


def echo(submission: Submission) -> str:
    return f"You said: {submission.messages[-1].content}"


def reply_to(submission: Submission, replies: Replies, stops: Sequence[str]) -> str:
    """The reply to the last message, up to the first stop string; what is missing is echoed."""
    reply = (
        replies.get(submission.messages[-1].content, echo(submission))
        if isinstance(replies, Mapping)
        else replies(submission)
    )
    cuts = [reply.find(stop) for stop in stops if stop in reply]
    return reply[: min(cuts)] if cuts else reply
