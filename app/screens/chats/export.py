"""Export: chats as files that people and programs read."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from app.store.conversation import Conversation, Message, with_attachments
from widgets.figures import count, duration

MAX_CLIPBOARD = 100_000  # bytes that common terminals take by OSC 52


def as_markdown(
    title: str, messages: Iterable[Message], user: str = "You", chat: Conversation | None = None
) -> str:
    """A branch of a chat as Markdown. Replies keep the Markdown that the model wrote.

    Args:
        user: the name over the user's messages.
        chat: its settings come below the title; None leaves them out.
    """
    parts = [f"# {title}\n"]
    if chat is not None and (settings := _settings(chat)):
        parts.append(settings)
    tools: dict[str | None, str] = {}  # names by the ids of their calls
    for message in messages:
        if message.tool_use is not None:
            tools |= {call.id: call.name for call in message.tool_use.calls}
        tool = f"Tool {message.name or tools.get(message.tool_call_id, '')}".strip()
        who = {"user": user, "tool": tool}.get(message.role, message.model or "Model")
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(message.created))
        parts.append(f"## {who}, {when}\n")
        if message.thinking:
            parts.append(
                f"<details><summary>Thinking</summary>\n\n{message.thinking}\n</details>\n"
            )
        parts.append(f"{with_attachments(message.content, message.attachments)}\n")
        if figures := _figures(message):
            parts.append(f"*{figures}*\n")
    return "\n".join(parts)


def file_name(title: str, ending: str = "md") -> str:
    """A file name that every file system takes, made of the title and the time."""
    words = re.sub(r"[^\w]+", "-", title).strip("-").lower()[:40] or "chat"
    return f"{words}-{time.strftime('%Y%m%d-%H%M%S')}.{ending}"


def _settings(chat: Conversation) -> str:
    lines = [f"- {name}: {value}" for name, value in chat.sampling.items()]
    if chat.system:
        quoted = "\n".join(f"  > {line}" for line in chat.system.splitlines())
        lines.append(f"- system prompt:\n\n{quoted}")
    return "\n".join(lines) + "\n" if lines else ""


def _figures(message: Message) -> str:
    """The figures of a reply, and how it ended unless the model ended it."""
    usage, timings = message.usage, message.timings
    parts = []
    if usage is not None:
        parts.append(f"{count(usage.prompt_tokens)} + {count(usage.completion_tokens)} tokens")
    if timings is not None and timings.ttft is not None:
        parts.append(f"first token after {duration(timings.ttft)}")
    if timings is not None and timings.e2e is not None:
        parts.append(f"{duration(timings.e2e)} in all")
    if message.error is not None:
        parts.append(message.error.message)
    elif message.finish_reason not in (None, "stop"):
        parts.append(f"ended by {message.finish_reason}")
    return ", ".join(parts)
