"""Rows: converts conversations and messages to rows of the store, and back."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from typing import Any

from app.store.conversation import Asked, Attachment, Conversation, Message
from app.store.journal import dump_error, load_error
from engine.api.lifecycle import FinishReason, Timings
from engine.api.stream import Usage
from engine.api.tools import ToolUse

# For an existing conversation it updates only what a turn changes. Another program may have changed
# the rest since, and its title, too, if the user set one there.
SAVE_CONVERSATION = """
INSERT INTO conversation
    (id, title, system, sampling, user, source, created, updated, leaf, is_open,
    number, is_named, forked_from, is_archived, pinned_at)
VALUES (:id, :title, :system, :sampling, :user, :source, :created, :updated, :leaf, :is_open,
    :number, :is_named, :forked_from, :is_archived, :pinned_at)
ON CONFLICT (id) DO UPDATE SET
    title = iif(is_named, title, :title), is_named = max(is_named, :is_named),
    updated = :updated, leaf = :leaf, number = :number
"""

SAVE_MESSAGE = """
INSERT INTO message
    (id, conversation_id, parent_id, role, content, thinking, tool_use, tool_call_id, name, created,
    model, request_id, finish_reason, error, usage, timings, attachments, asked)
VALUES (:id, :conversation_id, :parent_id, :role, :content, :thinking, :tool_use, :tool_call_id,
    :name, :created, :model, :request_id, :finish_reason, :error, :usage, :timings,
    :attachments, :asked)
ON CONFLICT (id) DO UPDATE SET
    content = :content, thinking = :thinking, tool_use = :tool_use, finish_reason = :finish_reason,
    error = :error, usage = :usage, timings = :timings, request_id = :request_id, model = :model
"""

# By name, because `*` would also read the contexts, which are the larger part.
MESSAGE_COLUMNS = (
    "message.id, conversation_id, message.parent_id, role, content, thinking, tool_use,"
    " tool_call_id, name, created, model, request_id, finish_reason, error, usage, timings,"
    " attachments, asked"
)

# A message and its ancestors, newest first.
UP = """
WITH RECURSIVE up (id, parent_id, distance) AS (
    SELECT id, parent_id, 0 FROM message WHERE id = ?
    UNION ALL
    SELECT message.id, message.parent_id, up.distance + 1
    FROM up JOIN message ON message.id = up.parent_id
)
"""


def conversation_values(conversation: Conversation) -> dict[str, object]:
    """The values of `SAVE_CONVERSATION`."""
    return {
        "id": conversation.id,
        "title": conversation.title,
        "system": conversation.system,
        "sampling": json.dumps(dict(conversation.sampling)),
        "user": conversation.user,
        "source": conversation.source,
        "created": conversation.created,
        "updated": conversation.updated,
        "leaf": conversation.leaf,
        "is_open": int(conversation.is_open),
        "number": conversation.number,
        "is_named": int(conversation.is_named),
        "forked_from": conversation.forked_from,
        "is_archived": int(conversation.is_archived),
        "pinned_at": conversation.pinned_at,
    }


def message_values(message: Message) -> dict[str, object]:
    """The values of `SAVE_MESSAGE`."""
    return {
        "id": message.id,
        "conversation_id": message.conversation_id,
        "parent_id": message.parent_id,
        "role": message.role,
        "content": message.content,
        "thinking": message.thinking,
        "tool_use": _dump(message.tool_use),
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "created": message.created,
        "model": message.model,
        "request_id": message.request_id,
        "finish_reason": message.finish_reason,
        "error": dump_error(message.error),
        "usage": _dump(message.usage),
        "timings": _dump(message.timings),
        "attachments": json.dumps([asdict(a) for a in message.attachments])
        if message.attachments
        else None,
        "asked": _dump(message.asked),
    }


def read_conversation(row: sqlite3.Row) -> Conversation:
    """Convert a row; its errors are those that `Database.decoding` catches."""
    values: dict[str, Any] = dict(row)
    values["sampling"] = dict(json.loads(values["sampling"]))
    values |= {name: bool(values[name]) for name in ("is_open", "is_named", "is_archived")}
    return Conversation(**values)


def read_message(row: sqlite3.Row) -> Message:
    """Convert a row; its errors are those that `Database.decoding` catches."""
    names = Message.__slots__
    values: dict[str, Any] = {name: row[name] for name in names}
    reason = values["finish_reason"]
    values["finish_reason"] = FinishReason(reason) if reason else None
    values["error"] = load_error(values["error"])
    if values["tool_use"] is not None:
        values["tool_use"] = ToolUse.load(json.loads(values["tool_use"]))
    for name, kind in (("usage", Usage), ("timings", Timings)):
        if values[name] is not None:
            values[name] = kind(**json.loads(values[name]))
    values["attachments"] = read_attachments(values["attachments"])
    if values["asked"] is not None:
        values["asked"] = Asked(**json.loads(values["asked"]))
    return Message(**values)


def read_attachments(cell: str | None) -> tuple[Attachment, ...]:
    """Convert a cell; its errors are those that `Database.decoding` catches."""
    return tuple(Attachment(**file) for file in json.loads(cell or "[]"))


def _dump(value: ToolUse | Usage | Timings | Asked | None) -> str | None:
    return None if value is None else json.dumps(asdict(value))
