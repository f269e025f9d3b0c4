from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversations.history import History
from app.store.conversation import Conversation, Message
from app.store.database import DeletedError, StoreError
from app.store.journal import JournalEntry
from app.store.store import Store
from engine.api.client import ChatMessage
from engine.api.errors import ErrorInfo, InvalidRequestError
from engine.api.lifecycle import FinishReason, Timings
from engine.api.stream import Context, Finish, Usage


def remote(name: str = "mqtt/p/u/s", system: str = "") -> Conversation:
    return Conversation(id=name, system=system, user="u", source="mqtt", is_open=False)


def reopened(store: Store, name: str = "mqtt/p/u/s") -> History:
    conversation = store.conversation(name)
    assert conversation is not None
    return History(conversation, store)


def end_of(history: History, question: Message, reason: FinishReason = FinishReason.STOP) -> Finish:
    """As an engine ends a reply: with a context of all messages, but for an error."""
    messages, _ = history.prompt(question)
    ids = tuple(ord(c) for m in messages for c in m.content)
    failed = reason is FinishReason.ERROR
    return Finish(
        reason,
        Usage(len(ids), 1, 0),
        Timings(),
        ErrorInfo("engine_error", "broke") if failed else None,
        None if failed else Context("k", ids, len(messages) + 1),
    )


def begin(history: History, text: str, request_id: str) -> tuple[Message, Message]:
    question = history.asked(request_id) or history.add(text)
    return question, history.reply(question, model="m", request_id=request_id, sampling={})


def turn(
    history: History, text: str, request_id: str, reason: FinishReason = FinishReason.STOP
) -> Message:
    question, reply = begin(history, text, request_id)
    reply.content = f"re {text}"
    history.finish(reply, end_of(history, question, reason))
    history.save()
    return reply


def fail_to_write(store: Store, fails: bool) -> None:
    store._db._db.execute(f"PRAGMA query_only = {int(fails)}")


def test_a_request_and_its_journal_entry_are_written_together_or_not_at_all(store: Store) -> None:
    names = ["mqtt/p/u/1", "mqtt/p/u/2", "mqtt/p/u/3"]
    store.journal.start(JournalEntry(request_id=names[1]))
    refused = []
    with store.transaction():
        for name in names:
            history = History(remote(name), store)
            begin(history, "Hi there", name)
            try:
                with store.transaction():
                    history.save()
                    store.journal.start(JournalEntry(request_id=name, conversation_id=name))
            except StoreError:
                refused.append(name)
    assert refused == [names[1]]
    assert [c.id for c in store.conversations()] == [names[0], names[2]]
    assert store.conversations(open_only=True) == []
    assert store.messages(names[1]) == []
    question, reply = reopened(store, names[2]).messages
    assert (question.content, reply.content, reply.request_id) == ("Hi there", "", names[2])
    assert (reply.finish_reason, reply.model) == (None, "m")


def test_an_ending_that_could_not_be_written_is_written_later(store: Store) -> None:
    history = History(remote(), store)
    question, reply = begin(history, "one", "r")
    history.save()
    store.journal.start(JournalEntry(request_id="r"))
    reply.content = "first"
    finish = end_of(history, question)
    history.finish(reply, finish)

    def end() -> bool:
        with store.transaction():
            history.save()
            return store.journal.end("r", finish.reason, ending="E")

    def end_and_lose() -> None:
        """It fails only when it is committed."""
        with store.transaction():
            assert end()
            store._db.write("UPDATE conversation SET leaf = 'nowhere'", ())

    fail_to_write(store, True)
    with pytest.raises(StoreError, match="readonly"):
        end()
    fail_to_write(store, False)
    with pytest.raises(StoreError):
        end_and_lose()
    assert reopened(store).is_busy
    assert end()
    again = reopened(store)
    assert again.messages == (question, reply)
    assert not again.is_busy
    _, context = again.prompt(again.add("two"))
    assert context == finish.context
    assert not end()


def test_a_conversation_goes_on_from_what_the_store_has_of_its_branch(store: Store) -> None:
    history = History(remote(system="Be brief."), store)
    turn(history, "one", "r1")
    old = turn(history, "two", "r2")
    new = history.reply(history.messages[2], model="m", request_id="r3", sampling={})
    new.content = "anew"
    history.finish(new, end_of(history, history.messages[2]))
    history.save()
    statements: list[str] = []
    store._db._db.set_trace_callback(statements.append)
    again = reopened(store)
    question = again.add("three")
    messages, context = again.prompt(question)
    store._db._db.set_trace_callback(None)
    assert len(statements) == 3, "one for the conversation, its branch and its context each"
    assert [m.content for m in again.messages] == ["one", "re one", "two", "anew"]
    assert messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "one"),
        ChatMessage("assistant", "re one"),
        ChatMessage("user", "two"),
        ChatMessage("assistant", "anew"),
        ChatMessage("user", "three"),
    )
    assert context is not None
    assert context.num_messages == 5
    assert old.parent_id == new.parent_id
    with pytest.raises(InvalidRequestError, match="cannot be edited"):
        again.add("other", instead_of=old.id)


def test_a_reply_that_another_thread_sees_ended_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complete = []

    class Seen(Message):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "finish_reason" and value is not None:
                complete.append((self.usage, self.timings, self.error) == told)

    monkeypatch.setattr("app.conversations.history.Message", Seen)
    history = History(remote())
    question, reply = begin(history, "one", "r")
    finish = end_of(history, question, FinishReason.ERROR)
    told = (finish.usage, finish.timings, finish.error)
    history.finish(reply, finish)
    assert complete == [True]


def test_another_attempt_stands_beside_the_failed_one(store: Store) -> None:
    history = History(remote(), store)
    turn(history, "one", "r1")
    failed = turn(history, "two", "r2", FinishReason.ERROR)
    again = reopened(store)
    assert again.asked("r1") is None
    question, reply = begin(again, "two", "r2")
    again.save()
    assert question.id == failed.parent_id == reply.parent_id
    assert [m.id for m in again.messages[2:]] == [question.id, reply.id]
    messages, context = again.prompt(question)
    assert [m.content for m in messages] == ["one", "re one", "two"]
    assert context is not None
    assert context.num_messages == 2
    assert len(store.messages(again.conversation.id)) == 5
    assert History(remote()).asked("r1") is None


def test_what_was_deleted_meanwhile_stays_deleted_and_the_others_go_on(
    store: Store, tmp_path: Path
) -> None:
    histories = [History(remote(name), store) for name in ("a", "b")]
    for history in histories:
        begin(history, "one", history.conversation.id)
        history.save()
        store.journal.start(JournalEntry(request_id=history.conversation.id))
    screen = Store(tmp_path / "store.db")
    screen.delete_conversation("a")
    deleted = []
    with store.transaction():
        for history in histories:
            question, reply = history.messages
            name = history.conversation.id
            reply.content = "text"
            history.finish(reply, end_of(history, question))
            try:
                history.save()
            except DeletedError:
                deleted.append(name)
            assert store.journal.end(name, FinishReason.STOP)
    assert deleted == ["a"]
    assert [c.id for c in screen.conversations()] == ["b"]
    assert screen.branch(histories[1].messages[-1].id) == list(histories[1].messages)
    entry = screen.journal.entry("a")
    assert entry is not None
    assert entry.reason is FinishReason.STOP
    screen.close()


def test_an_ending_leaves_alone_what_another_program_did_to_the_conversation(
    store: Store, tmp_path: Path
) -> None:
    history = History(remote(), store)
    question, reply = begin(history, "one", "r")
    history.save()
    screen = Store(tmp_path / "store.db")
    shown = reopened(screen)
    assert shown.is_busy
    shown.conversation.title, shown.conversation.is_open = "Renamed", True
    screen.save_label(shown.conversation, "title", "is_open")
    history.finish(reply, end_of(history, question))
    history.save()
    assert screen.conversations(open_only=True) == [shown.conversation]
    assert not reopened(screen).is_busy
    screen.close()


def test_a_context_that_cannot_be_read_is_done_without(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(remote(), store)
    turn(history, "one", "r")

    def fails(_message_id: str) -> None:
        raise StoreError("the disk broke")

    monkeypatch.setattr(store.contexts, "of", fails)
    with caplog.at_level(logging.ERROR):
        messages, context = history.prompt(history.add("two"))
    assert [m.content for m in messages] == ["one", "re one", "two"]
    assert context is None
    assert "rendered again: the disk broke" in caplog.text


def test_a_context_of_other_messages_is_not_used(store: Store) -> None:
    history = History(remote(), store)
    turn(history, "one", "r")
    conversation = replace(history.conversation, system="Be brief.")
    _, context = History(conversation, store).prompt(history.add("two"))
    assert context is None


_steps = st.tuples(
    st.sampled_from(["send", "send", "edit", "regenerate", "open again"]),
    st.sampled_from([FinishReason.STOP, FinishReason.ABORT, FinishReason.ERROR]),
    st.booleans(),
    st.booleans(),
)


@given(steps=st.lists(_steps, max_size=10))
def test_a_store_that_fails_at_times_has_in_the_end_what_memory_has(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, FinishReason, bool, bool]],
) -> None:
    """Kept by a store, and read from it anew now and then, a history is what memory alone makes."""
    store = Store(tmp_path_factory.mktemp("history") / "store.db")
    kept, memory = History(remote(), store), History(remote())
    kept.save()
    names = count()
    for action, reason, begin_fails, end_fails in steps:
        name = f"r{next(names)}"
        if action == "open again":
            fail_to_write(store, False)
            kept.save()
            if kept.messages:
                kept = reopened(store)
        if action == "regenerate" and not memory.messages:
            continue
        for history in (kept, memory):
            branch = history.messages
            if action == "regenerate":
                question = branch[-2]
            elif action == "edit" and branch:
                question = history.add(name, instead_of=branch[len(branch) // 4 * 2].id)
            else:
                question = history.add(name)
            reply = history.reply(question, model="m", request_id=name, sampling={})
            fail_to_write(store, begin_fails)
            _save(history)
            reply.content = "" if begin_fails else name
            history.finish(reply, end_of(history, question, reason))
            fail_to_write(store, end_fails)
            _save(history)
    asked = [history.prompt(history.add("last")) for history in (kept, memory)]
    assert asked[0] == asked[1]
    fail_to_write(store, False)
    kept.save()
    if kept.messages:
        again = reopened(store)
        assert again.messages == kept.messages
        assert again.prompt(again.add("last")) == asked[0]
    store.close()


def _save(history: History) -> None:
    with contextlib.suppress(StoreError):
        history.save()
