from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.screens.chats.keeper import ChatKeeper
from app.screens.chats.open_session import UNTITLED
from app.screens.chats.sessions import SessionList
from app.store.conversation import Conversation
from app.store.database import StoreError
from app.store.store import Store
from engine.api.lifecycle import FinishReason
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


def ask(sessions: SessionList, engine: ScriptedEngine, text: str) -> None:
    sessions.current.chat.send(text)
    engine.finish_all()
    sessions.poll()


def ask_elsewhere(sessions: SessionList, engine: ScriptedEngine, title: str) -> None:
    """Have a chat go on that is not on view, so that it is the newest."""
    chat = next(session.chat for session in sessions.sessions if session.title == title)
    chat.send("more")
    engine.finish_all()
    sessions.poll()


def titles(sessions: SessionList) -> list[str]:
    return [session.title for session in sessions.sessions]


def test_there_is_always_one_on_view(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    assert titles(sessions) == [UNTITLED]
    sessions.close(sessions.current)
    assert titles(sessions) == [UNTITLED]
    assert sessions.current in sessions.sessions
    assert store.conversations() == []


def test_steps_go_around(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    for text in ("a", "b", "c"):
        ask(sessions, engine, text)
        sessions.new()
    assert sessions.sessions.index(sessions.current) == 3
    sessions.step(1)
    assert sessions.sessions.index(sessions.current) == 0
    sessions.step(-2)
    assert sessions.sessions.index(sessions.current) == 2


def test_closing_goes_to_the_neighbour(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    for text in ("a", "b", "c"):
        ask(sessions, engine, text)
        sessions.new()
    sessions.go_to(sessions.sessions[1])
    sessions.close(sessions.current)
    assert sessions.current.title == "c"
    first = sessions.sessions[0]
    sessions.close(first)
    assert sessions.current.title == "c"
    sessions.go_to(sessions.sessions[-1])
    sessions.close(sessions.current)
    assert sessions.current.title == "c"


def test_a_closed_conversation_opens_again(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    ask(sessions, engine, "a")
    closed = sessions.current
    sessions.close(closed)
    assert sessions.open(closed.key)
    assert sessions.current.key == closed.key
    assert sessions.current.history == ("a",)
    assert [c.is_open for c in store.conversations()] == [True]
    assert not sessions.open("unknown")
    assert sessions.open(closed.key)
    assert len([s for s in sessions.sessions if s.key == closed.key]) == 1


def test_closing_and_renaming_leave_what_another_program_wrote(
    store: Store, engine: ScriptedEngine, tmp_path: Path
) -> None:
    ours = SessionList(engine, store)
    ask(ours, engine, "a")
    other_store = Store(tmp_path / "store.db")
    theirs = SessionList(engine, other_store)
    ask(theirs, engine, "b")
    ours.rename(ours.current, "renamed")
    ours.close(ours.current)
    (kept,) = store.conversations()
    assert (kept.title, kept.is_open) == ("renamed", False)
    assert kept.leaf == theirs.current.chat.messages[-1].id
    ChatKeeper(theirs, other_store).delete(theirs.current.key)
    other_store.close()
    assert store.conversations() == []


def test_closing_and_renaming_do_not_undo_archiving_and_a_name(
    store: Store, engine: ScriptedEngine, tmp_path: Path
) -> None:
    ours = SessionList(engine, store)
    ask(ours, engine, "a")
    with closing(Store(tmp_path / "store.db")) as other:
        theirs = ChatKeeper(SessionList(engine, other), other)
        theirs.archive(ours.current.key)
        theirs.rename(ours.current.key, "theirs")
    ours.close(ours.current)
    (kept,) = store.conversations()
    assert (kept.title, kept.is_archived, kept.is_open) == ("theirs", True, False)
    ours.open(kept.id)
    ours.rename(ours.current, "ours")
    (kept,) = store.conversations()
    assert (kept.title, kept.is_archived, kept.is_open) == ("ours", True, True)


def test_a_conversation_that_another_program_deleted_stays_deleted(
    store: Store, engine: ScriptedEngine
) -> None:
    sessions = SessionList(engine, store)
    ask(sessions, engine, "a")
    store.delete_conversation(sessions.current.key)
    sessions.rename(sessions.current, "renamed")
    sessions.close(sessions.current)
    assert store.conversations() == []


def test_a_conversation_deleted_by_another_program_goes_on_unsaved(
    store: Store, engine: ScriptedEngine
) -> None:
    sessions = SessionList(engine, store)
    ask(sessions, engine, "a")
    store.delete_conversation(sessions.current.key)
    ask(sessions, engine, "b")
    chat = sessions.current.chat
    assert [m.content for m in chat.messages if m.role == "user"] == ["a", "b"]
    assert "another program deleted the chat" in chat.unsaved


def test_news_of_a_session_not_on_view_is_unread(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    first = sessions.current
    first.chat.send("a")
    sessions.new()
    assert sessions.poll() == set()
    engine.advance()
    assert sessions.poll() == {first.key}
    assert first.unread
    sessions.go_to(first)
    assert not first.unread


def test_ending_stops_every_reply_and_keeps_it(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    sessions.current.chat.send("a")
    first = sessions.current
    sessions.new()
    sessions.current.chat.send("b")
    engine.advance(2)
    assert sessions.num_busy == 2
    sessions.stop_all()
    sessions.close_all()
    assert sessions.num_busy == 0
    assert store.messages(first.key)[1].finish_reason is FinishReason.ABORT
    again = SessionList(engine, store)
    assert titles(again) == ["a", "b"]
    assert again.current.title == "b"


def test_the_one_on_view_is_there_again_after_a_start(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    for text in ("a", "b", "c"):
        sessions.new()
        ask(sessions, engine, text)
    sessions.go_to(sessions.sessions[1])
    # The program may be killed now.
    assert SessionList(engine, store).current.title == "b"
    sessions.new()
    ask(sessions, engine, "d")
    ask_elsewhere(sessions, engine, "a")
    assert SessionList(engine, store).current.title == "d"


def test_the_program_that_wrote_last_says_which_one_is_on_view(
    store: Store, engine: ScriptedEngine, tmp_path: Path
) -> None:
    ours = SessionList(engine, store)
    for text in ("a", "b", "c"):
        ours.new()
        ask(ours, engine, text)
    with closing(Store(tmp_path / "store.db")) as other_store:
        theirs = SessionList(engine, other_store)
        theirs.go_to(theirs.sessions[0])
        ours.go_to(ours.sessions[1])
        theirs.close_all()
    assert SessionList(engine, store).current.title == "a"


@pytest.mark.parametrize("gone", ["close", "archive", "delete", "damage", "empty"])
def test_the_newest_is_on_view_where_the_one_that_was_is_not_open(
    store: Store, engine: ScriptedEngine, tmp_path: Path, gone: str
) -> None:
    sessions = SessionList(engine, store)
    for text in ("a", "b", "c"):
        sessions.new()
        ask(sessions, engine, text)
    old = sessions.sessions[0]
    sessions.go_to(old)
    # Another program does it, so that nothing else is gone to here.
    chat = old.chat.conversation
    if gone == "damage":
        with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
            db.execute("UPDATE conversation SET leaf = 'gone' WHERE id = ?", (old.key,))
    elif gone == "empty":
        sessions.new()
        sessions.close_all()
    elif gone == "delete":
        store.delete_conversation(old.key)
    else:
        chat.is_open, chat.is_archived = False, gone == "archive"
        store.save_label(chat, "is_open", "is_archived")
    assert SessionList(engine, store).current.title == "c"


def test_a_store_that_cannot_keep_it_keeps_nobody_from_going_on(
    store: Store, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = SessionList(engine, store)
    for text in ("a", "b"):
        sessions.new()
        ask(sessions, engine, text)
    fails = Mock(side_effect=StoreError("locked"))
    monkeypatch.setattr(store.summaries, "set_current", fails)
    monkeypatch.setattr(store.summaries, "current", fails)
    sessions.go_to(sessions.sessions[0])
    assert sessions.current.title == "a"
    sessions.close_all()
    assert SessionList(engine, store).current.title == "b"
    assert sessions.notices == []


def test_system_prompt_and_sampling_go_with_new_conversations(
    store: Store, engine: ScriptedEngine
) -> None:
    sessions = SessionList(engine, store, system="Be brief.", sampling={"temperature": 0.5})
    ask(sessions, engine, "a")
    (submission,) = engine.submissions
    assert submission.messages[0].content == "Be brief."
    assert submission.sampling == {"temperature": 0.5}


def test_a_request_is_named_without_the_chats_that_were_not_looked_at(
    store: Store, engine: ScriptedEngine
) -> None:
    sessions = SessionList(engine, store)
    sessions.current.chat.send("this breaks")
    engine.break_request(sessions.current.request_id, "broken")
    sessions.poll()
    for text in ("a", "b"):
        sessions.new()
        ask(sessions, engine, text)
    sessions.close_all()
    again = SessionList(engine, store)
    assert again.numbering.subject("of-somebody-else").name == "request of-somebody-else"
    assert again.failures(()) == {}
    assert [session.is_read for session in again.sessions] == [False, False, True]


def test_only_what_is_on_view_is_read(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    for text in ("a", "b", "c"):
        sessions.new()
        ask(sessions, engine, text)
    sessions.close_all()
    again = SessionList(engine, store)

    def read() -> list[str]:
        return [s.title for s in again.sessions if s.is_read]

    assert read() == ["c"]
    again.poll()
    again.new()
    assert read() == ["c", UNTITLED]
    again.go_to(again.sessions[0])
    assert read() == ["a", "c", UNTITLED]


def test_one_that_failed_is_marked_before_it_is_read(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    sessions.current.chat.send("this breaks")
    engine.break_request(sessions.current.request_id, "broken")
    sessions.poll()
    sessions.new()
    ask(sessions, engine, "this does not")
    sessions.close_all()
    again = SessionList(engine, store)
    assert [(s.has_failed, s.is_read) for s in again.sessions] == [
        (True, False),
        (False, True),
    ]
    again.go_to(again.sessions[0])
    ask(again, engine, "once more")
    assert not again.current.has_failed


def test_what_cannot_be_read_when_it_is_gone_to_leaves_the_other_on_view(
    store: Store, engine: ScriptedEngine
) -> None:
    sessions = SessionList(engine, store)
    for text in ("a", "b"):
        sessions.new()
        ask(sessions, engine, text)
    sessions.close_all()
    again = SessionList(engine, store)
    again.sessions[0].chat.conversation.leaf = "gone"
    again.step(1)
    assert titles(again) == ["b"]
    assert again.current.title == "b"
    assert len(again.notices) == 1
    again.close(again.current)
    assert titles(again) == [UNTITLED]


def test_how_a_reply_ends_in_a_closed_chat_is_told(store: Store, engine: ScriptedEngine) -> None:
    sessions = SessionList(engine, store)
    for text in ("good", "bad", "stopped"):
        sessions.new()
        sessions.current.chat.send(text)
    good, bad, stopped = sessions.sessions
    engine.advance()
    for session in (good, bad, stopped):
        sessions.close(session)
    engine.break_request(bad.request_id, "the device is gone")
    stopped.chat.stop()
    engine.finish_all()
    sessions.poll()
    assert sessions.closed == []
    assert sessions.ended == ["good"]
    assert sessions.notices == ["“bad”, which is closed: the device is gone"]


def test_that_a_chat_is_not_saved_is_told_once_and_at_once(
    store: Store, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = SessionList(engine, store)
    sessions.current.chat.send("Hi")
    engine.advance()
    with monkeypatch.context() as patch:
        patch.setattr(store, "save_message", Mock(side_effect=StoreError("no room")))
        engine.finish_all()
        sessions.poll()
        sessions.poll()
        assert sessions.notices == ["“Hi” is not saved: no room"]
    ask(sessions, engine, "Again")
    assert len(sessions.notices) == 1
    assert [message.content for message in store.messages(sessions.current.key)][2] == "Again"


def test_chats_that_never_were_on_a_screen_are_numbered_once(
    store: Store, engine: ScriptedEngine
) -> None:
    first = Conversation(title="first", number=2)
    for chat in (first, Conversation(title="second"), Conversation(title="third")):
        store.save_conversation(chat)
    SessionList(engine, store)
    assert [chat.number for chat in store.conversations()] == [2, 1, 3]
    before = store.summaries.version()
    SessionList(engine, store)
    assert store.summaries.version() == before
