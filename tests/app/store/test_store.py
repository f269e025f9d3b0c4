from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store import database
from app.store.conversation import Conversation, Message
from app.store.database import DeletedError, StoreError
from app.store.journal import RESTARTED, JournalEntry
from app.store.migrations import SCHEMA_VERSION
from app.store.store import Store
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.stream import Context, Usage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(Store(path)) as store:
        yield store


def chain(store: Store, length: int) -> list[Message]:
    """A conversation of `length` messages, one after the other."""
    conversation = Conversation()
    store.save_conversation(conversation)
    messages: list[Message] = []
    for index in range(length):
        parent = messages[-1].id if messages else None
        role = "assistant" if index % 2 else "user"
        messages.append(
            Message(conversation_id=conversation.id, parent_id=parent, role=role, content="x")
        )
        store.save_message(messages[-1])
    return messages


def test_everything_is_there_again(path: Path) -> None:
    store = Store(path)
    one = Conversation(title="One", system="Be brief.", sampling={"top_k": 3, "stop": ["a"]})
    two = Conversation(title="Two", user="eve", source="mqtt", is_open=False)
    asked = Message(conversation_id=one.id, parent_id=None, role="user", content="Hi \N{SNOWMAN}")
    answer = Message(
        conversation_id=one.id,
        parent_id=asked.id,
        role="assistant",
        content="",
        model="tiny",
        request_id="r1",
    )
    store.save_conversation(one)
    store.save_conversation(two)
    store.save_message(asked)
    store.save_message(answer)
    answer.content = "Hello"
    answer.finish_reason = FinishReason.ERROR
    answer.error = ErrorInfo("engine_error", "broke", "param")
    answer.usage = Usage(3, 4, 1)
    answer.timings = Timings(0.1, 0.2, 0.3, 0.4, None, 0.6)
    store.save_message(answer)
    one.leaf = answer.id
    store.save_conversation(one)
    store.close()

    store = Store(path)
    assert store.conversations() == [one, two]
    assert store.conversations(open_only=True) == [one]
    assert store.conversation(two.id) == two
    assert store.conversation("none") is None
    assert store.messages(one.id) == [asked, answer]
    assert store.messages(two.id) == []
    store.close()


def reopened(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store as a later start finds it, when what was deleted is gone for good."""
    store.close()
    monkeypatch.setattr("app.store.store.UNDO_SECONDS", -1.0)
    return Store(path)


def test_deleting_a_conversation_keeps_the_journal_and_the_others(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = chain(store, 2), chain(store, 2)
    conversation = store.conversation(gone[0].conversation_id)
    assert conversation is not None
    conversation.leaf = gone[1].id
    store.save_conversation(conversation)
    store.journal.start(JournalEntry(request_id="r", conversation_id=conversation.id))
    store.delete_conversation(conversation.id)
    assert store.conversation(conversation.id) is None
    assert [c.id for c in store.conversations()] == [kept[0].conversation_id]
    store = reopened(store, path, monkeypatch)
    assert store.messages(conversation.id) == []
    assert not store.restore_conversation(conversation.id)
    assert store.messages(kept[0].conversation_id) == kept
    entry = store.journal.entry("r")
    assert entry is not None
    assert entry.conversation_id is None


def test_a_deleted_chat_can_be_restored_and_not_gone_on_with(path: Path) -> None:
    store = Store(path)
    kept = chain(store, 2)
    conversation = store.conversation(kept[0].conversation_id)
    store.delete_conversation(kept[0].conversation_id)
    assert store.conversations() == []
    with pytest.raises(DeletedError):
        store.save_message(kept[1])
    store.close()
    store = Store(path)
    assert store.restore_conversation(kept[0].conversation_id)
    assert store.conversations() == [conversation]
    assert store.messages(kept[0].conversation_id) == kept
    store.save_message(kept[1])
    store.close()


def test_the_id_of_a_deleted_chat_can_be_used_anew(store: Store) -> None:
    kept = chain(store, 2)
    store.free_id(kept[0].conversation_id)
    assert len(store.conversations()) == 1
    store.delete_conversation(kept[0].conversation_id)
    store.free_id(kept[0].conversation_id)
    store.save_conversation(Conversation(id=kept[0].conversation_id, title="Anew"))
    assert [c.title for c in store.conversations()] == ["Anew"]
    assert store.messages(kept[0].conversation_id) == []


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    first, second = Conversation(), Conversation()
    with store.transaction():
        store.save_conversation(first)
        with store.transaction():
            store.save_conversation(second)

    def fail() -> None:
        with store.transaction():
            store.delete_conversation(first.id)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert store.conversations() == [first, second]


def test_a_message_needs_its_conversation(path: Path) -> None:
    store = Store(path)
    with pytest.raises(StoreError, match="another program deleted"):
        store.save_message(Message(conversation_id="x", parent_id=None, role="user", content=""))
    store.close()


_ids = st.lists(st.integers(0, 2**31 - 1), max_size=30)


@given(turns=st.lists(st.tuples(st.booleans(), _ids, st.booleans()), min_size=1, max_size=6))
def test_contexts_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[bool, list[int], bool]]
) -> None:
    """Whether a turn extends the one before, was rendered anew, or came from another model."""
    store = Store(tmp_path_factory.mktemp("contexts") / "store.db")
    kept: dict[str, tuple[str, Context] | None] = {}
    newest: tuple[str, Context] | None = None
    ids: tuple[int, ...] = ()
    for message, (extends, new, other_model) in zip(chain(store, len(turns)), turns, strict=True):
        if new:
            ids = (*ids, *new) if extends else (*ids[: len(ids) // 2], *new)
            context = Context("b" if other_model else "a", ids, len(kept) + 1)
            store.contexts.save(message.id, context)
            newest = message.id, context
        kept[message.id] = newest
    assert {name: store.contexts.of(name) for name in kept} == kept
    store.close()


def test_contexts_grow_with_the_conversation_not_with_its_square(path: Path) -> None:
    store = Store(path)
    messages = chain(store, 100)
    for index, message in enumerate(messages, 1):
        store.contexts.save(message.id, Context("k", tuple(range(100 * index)), index))
    store.close()
    with sqlite3.connect(path) as db:
        size = db.execute("SELECT sum(length(context)) FROM message").fetchone()[0]
    assert size == 4 * 100 * 100


def test_branches_have_their_own_contexts(path: Path) -> None:
    store = Store(path)
    root, first = chain(store, 2)
    second = Message(
        conversation_id=root.conversation_id, parent_id=root.id, role="assistant", content="y"
    )
    store.save_message(second)
    store.contexts.save(root.id, Context("k", (1, 2), 1))
    store.contexts.save(first.id, Context("k", (1, 2, 3, 4), 2))
    store.contexts.save(second.id, Context("k", (1, 2, 9), 2))
    assert store.contexts.of(first.id) == (first.id, Context("k", (1, 2, 3, 4), 2))
    assert store.contexts.of(second.id) == (second.id, Context("k", (1, 2, 9), 2))
    assert store.branch(second.id) == [root, second]
    assert store.branch("unknown") == []
    assert store.contexts.of("unknown") is None
    store.close()


_DIES = """
import os, signal, sys
from pathlib import Path
from app.store.journal import JournalEntry
from app.store.conversation import Conversation, Message
from app.store.store import Store
store = Store(Path(sys.argv[1]))
conversation = Conversation(id="dead")
store.save_conversation(conversation)
store.journal.start(JournalEntry(request_id="orphan", conversation_id="dead"))
store.save_message(Message(id="m", conversation_id="dead", parent_id=None, role="assistant",
                           content="a part of", request_id="orphan"))
print("written", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_dead_process_left_is_ended_and_a_live_ones_is_not(path: Path) -> None:
    mine = Store(path)
    mine.journal.start(JournalEntry(request_id="mine"))
    command = [sys.executable, "-c", _DIES, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        while_alive = Store(path)
        entry = while_alive.journal.entry("orphan")
        assert entry is not None
        assert entry.ended_at is None
        while_alive.close()
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL
    after = Store(path)
    entry = after.journal.entry("orphan")
    assert entry is not None
    assert (entry.reason, entry.error) == (FinishReason.ERROR, RESTARTED)
    (message,) = after.messages("dead")
    assert message.content == "a part of"
    assert (message.finish_reason, message.error) == (FinishReason.ERROR, RESTARTED)
    alive = after.journal.entry("mine")
    assert alive is not None
    assert alive.ended_at is None
    after.close()
    mine.close()


def test_many_may_open_a_new_store_at_once(path: Path) -> None:
    barrier = threading.Barrier(8)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            barrier.wait()
            store = Store(path)
            for _ in range(5):
                store.save_conversation(Conversation())
            store.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = Store(path)
    assert len(store.conversations()) == 40
    store.close()


def test_a_newer_schema_is_left_alone(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"newer batchdeck \(schema {SCHEMA_VERSION + 1}, this"):
        Store(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(StoreError, match="is another program's database"):
        Store(path)


def test_a_damaged_store_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match=r"store\.db: it is damaged \(file is not a database\)"):
        Store(path)


def test_a_store_without_a_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"store\.db: it cannot be opened \(.*xist"):
        Store(tmp_path / "file" / "store.db")


def test_a_read_only_store_is_named(path: Path) -> None:
    (path.parent / path.name).mkdir(parents=True)
    with pytest.raises(StoreError, match=r"it cannot be written \(unable to open"):
        Store(path)
    path.rmdir()
    store = Store(path)
    store._db._db.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match=r"it cannot be written \(attempt to write a readonly"):
        store.save_conversation(Conversation())
    store.close()


def test_a_locked_store_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.0)
    store = Store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"store\.db: another program has had it locked"):
        store.save_conversation(Conversation())
    other.execute("ROLLBACK")
    store.save_conversation(Conversation())
    other.close()
    store.close()


def test_a_full_disk_is_named_and_loses_nothing(store: Store) -> None:
    kept = chain(store, 1)[0]
    store._db._db.execute("PRAGMA max_page_count = 1")
    kept.content = "x" * 1_000_000
    with pytest.raises(StoreError, match="the disk is full"):
        store.save_message(kept)
    assert store.messages(kept.conversation_id)[0].content == "x"


def test_closing_leaves_no_lease(path: Path) -> None:
    store = Store(path)
    leases = path.with_name("store.db-leases")
    assert len(list(leases.iterdir())) == 1
    store.close()
    assert list(leases.iterdir()) == []


def test_a_number_is_the_smallest_that_no_other_has(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [Conversation(title=f"Chat {n}") for n in range(3)]
    for chat in chats:
        store.number(chat)
        store.save_conversation(chat)
    assert [chat.number for chat in store.conversations()] == [1, 2, 3]
    store.delete_conversation(chats[1].id)
    store = reopened(store, path, monkeypatch)
    new, newer = Conversation(), Conversation()
    store.number(new)
    store.number(newer, taken={2})
    assert (new.number, newer.number) == (2, 4)


def test_two_programs_do_not_give_one_number_twice(path: Path) -> None:
    ours, theirs = Store(path), Store(path)
    one, other = Conversation(title="Ours"), Conversation(title="Theirs")
    ours.number(one)
    theirs.number(other)
    assert one.number == other.number == 1
    ours.save_conversation(one)
    theirs.save_conversation(other)
    assert (one.number, other.number) == (1, 2)
    other.number = 1
    theirs.save_label(other, "number")
    assert sorted(chat.number or 0 for chat in ours.conversations()) == [1, 2]
    ours.close()
    theirs.close()


def test_sent_messages_are_those_of_the_user_each_once(store: Store) -> None:
    chats = [Conversation(), Conversation(source="mqtt"), Conversation()]
    for chat in chats:
        store.save_conversation(chat)
    mine, theirs, deleted = (chat.id for chat in chats)
    for chat_id, role, content in (
        (mine, "user", "one"),
        (mine, "assistant", "reply"),
        (mine, "user", "two"),
        (theirs, "user", "theirs"),
        (deleted, "user", "deleted"),
        (mine, "user", "one"),
        (mine, "user", ""),
    ):
        store.save_message(
            Message(conversation_id=chat_id, parent_id=None, role=role, content=content)
        )
    store.delete_conversation(deleted)
    assert store.sent(9) == ["one", "two"]
    assert store.sent(1) == ["one"]
