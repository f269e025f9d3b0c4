"""Export: a conversation as a Markdown file."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from app.store.conversation import Message


def as_markdown(title: str, messages: Iterable[Message], user: str = "You") -> str:
    """A conversation as Markdown. Replies keep the Markdown that the model wrote.

    Args:
        user: the name over the user's messages.
    """
    parts = [f"# {title}\n"]
    for message in messages:
        who = {"user": user, "tool": "Tool"}.get(message.role, message.model or "Model")
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(message.created))
        parts.append(f"## {who}, {when}\n\n{message.content}\n")
    return "\n".join(parts)


def file_name(title: str) -> str:
    """A file name that every file system takes, made of the title and the time."""
    words = re.sub(r"[^\w]+", "-", title).strip("-").lower()[:40] or "chat"
    return f"{words}-{time.strftime('%Y%m%d-%H%M%S')}.md"
