"""Cells that hold what cannot be read: what they belong to is lost, and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.screens.chats.sessions import SessionList
from app.store.conversation import Conversation, Message
from app.store.database import StoreError
from app.store.journal import JournalEntry
from app.store.query import Query
from app.store.store import Store
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason
from engine.api.stream import Context
from tests.support.scripted_engine import ScriptedEngine

CELLS = [
    ("conversation", "sampling", '{"top_k":'),
    ("conversation", "sampling", "3"),
    ("conversation", "leaf", "another"),
    ("message", "parent_id", "another"),
    ("message", "usage", '{"prompt_tokens": 3'),
    ("message", "usage", '{"prompt_tokEns": 3}'),
    ("message", "timings", "[" * 100_000),
    ("message", "error", "4"),
    ("message", "finish_reason", "stpo"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def spoil(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement, values).rowcount > 0


def keep(store: Store, name: str) -> Message:
    """A conversation of one turn; returns the reply."""
    conversation = Conversation(id=name, title=name)
    store.save_conversation(conversation)
    question = Message(conversation_id=name, parent_id=None, role="user", content="Hi")
    reply = Message(
        conversation_id=name,
        parent_id=question.id,
        role="assistant",
        content="Hello",
        finish_reason=FinishReason.STOP,
    )
    store.save_message(question)
    store.save_message(reply)
    conversation.leaf = reply.id
    store.save_conversation(conversation)
    return reply


@pytest.mark.parametrize(("table", "column", "value"), CELLS)
def test_a_conversation_that_is_damaged_is_left_out_and_told(
    path: Path, table: str, column: str, value: str
) -> None:
    with closing(Store(path)) as store:
        for name in ("bad", "good"):
            keep(store, name)
    whose = "title = 'bad'" if table == "conversation" else "conversation_id = 'bad'"
    spoil(path, f"UPDATE {table} SET {column} = ? WHERE {whose}", value)
    with closing(Store(path)) as store:
        sessions = SessionList(ScriptedEngine(), store)
        # Its messages are not looked at before it is on view.
        for session in sessions.sessions[:]:
            sessions.go_to(session)
        assert [session.title for session in sessions.sessions] == ["good"]
        (sentence,) = sessions.notices
        assert "damaged" in sentence or "the last message of 'bad' is not in" in sentence
        with pytest.raises(StoreError):
            sessions.open("bad")
        assert "good" in [found.chat.title for found in store.search.find(Query())]


def test_a_damaged_character_keeps_nothing_from_being_read(path: Path) -> None:
    with closing(Store(path)) as store:
        keep(store, "bad")
    spoil(path, "UPDATE conversation SET title = CAST(x'62FF64' AS TEXT)")
    with closing(Store(path)) as store:
        (conversation,) = store.conversations()
        assert conversation.title == "b\N{REPLACEMENT CHARACTER}d"


def test_a_damaged_context_is_not_gone_on_with(path: Path) -> None:
    with closing(Store(path)) as store:
        reply = keep(store, "one")
        assert reply.parent_id is not None
        store.contexts.save(reply.parent_id, Context("k", (1, 2), 1))
    spoil(path, "UPDATE message SET context = x'010203' WHERE context IS NOT NULL")
    with closing(Store(path)) as store:
        with pytest.raises(StoreError, match=r"the context of a message is damaged \(ValueError: "):
            store.contexts.of(reply.id)
        store.contexts.save(reply.id, Context("k", (1, 2, 3), 2))
        assert store.contexts.of(reply.id) == (reply.id, Context("k", (1, 2, 3), 2))


def test_a_damaged_request_keeps_no_other_from_being_told(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Store(path)) as store:
        for name in ("bad", "good"):
            store.journal.start(JournalEntry(request_id=name, source="mqtt"))
            store.journal.end(name, FinishReason.ERROR, ErrorInfo("engine_error", "broke"))
    spoil(path, "UPDATE request SET error = '{\"type' WHERE request_id = 'bad'")
    with closing(Store(path)) as store:
        assert [entry.request_id for entry in store.journal.undelivered("mqtt", "")] == ["good"]
        assert "the request 'bad' is damaged (JSONDecodeError: Unterminated" in caplog.text
        with pytest.raises(StoreError, match="the request 'bad' is damaged"):
            store.journal.last("bad")
