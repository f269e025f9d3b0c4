"""Chats as Markdown."""

from __future__ import annotations

import re

from app.screens.chats.export import as_markdown
from app.store.conversation import Conversation, Message
from engine.api.lifecycle import FinishReason
from engine.api.tools import ToolCall, ToolUse


def message(role: str, content: str, **kwargs: object) -> Message:
    values = {"conversation_id": "c", "parent_id": None, "role": role, "content": content}
    return Message(**values, **kwargs)  # type: ignore[arg-type]


def test_the_message_of_a_tool_names_the_tool() -> None:
    use = ToolUse((ToolCall("clock", "{}", "1"),))
    text = as_markdown(
        "Times",
        [
            message("user", "How late is it?"),
            message("assistant", "…", model="m", tool_use=use, finish_reason=FinishReason.STOP),
            message("tool", "12:00", tool_call_id="1"),
            message("tool", "sunny", name="weather"),
            message("tool", "?"),
        ],
        chat=Conversation(system="Be brief.", sampling={"top_k": 3}),
    )
    heads = re.findall(r"^## (.*), ", text, re.MULTILINE)
    assert heads == ["You", "m", "Tool clock", "Tool weather", "Tool"]
    assert "- top_k: 3\n- system prompt:\n\n  > Be brief.\n" in text
