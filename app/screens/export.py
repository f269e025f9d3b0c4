"""Export: a conversation as a Markdown file."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from app.store.conversation import Message


def as_markdown(title: str, messages: Iterable[Message], user: str = "You") -> str:
    """The branch on view; the replies keep the Markdown that the model wrote."""
    parts = [f"# {title}\n"]
    for message in messages:
        who = user if message.role == "user" else message.model or "Model"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(message.created))
        parts.append(f"## {who}, {when}\n\n{message.content}\n")
    return "\n".join(parts)


def file_name(title: str) -> str:
    """A name that every file system takes."""
    words = re.sub(r"[^\w]+", "-", title).strip("-").lower()[:40] or "chat"
    return f"{words}-{time.strftime('%Y%m%d-%H%M%S')}.md"
