"""Where a conversation parts: by the hands of one program, and by those of two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.conversations.fork import fork
from app.conversations.history import History
from app.conversations.session import ChatSession
from app.store.conversation import Conversation, Message
from app.store.database import StoreError
from app.store.journal import RESTARTED
from app.store.store import Store
from engine.api.errors import InvalidRequestError
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def other(tmp_path: Path, store: Store) -> Iterator[Store]:
    """The same file, as another program has it open."""
    other = Store(tmp_path / "store.db")
    yield other
    other.close()


def opened(engine: ScriptedEngine, store: Store) -> ChatSession:
    (conversation,) = store.conversations()
    return ChatSession(engine, conversation, store)


def begun(engine: ScriptedEngine, store: Store | None, *texts: str) -> ChatSession:
    session = ChatSession(engine, Conversation(), store)
    for text in texts:
        session.send(text)
        settle(engine, session)
    return session


def settle(engine: ScriptedEngine, *sessions: ChatSession) -> None:
    engine.finish_all()
    for session in sessions:
        session.poll()


def said(session: ChatSession) -> list[str]:
    return [m.content for m in session.messages if m.role == "user"]


def marks(session: ChatSession) -> dict[str, tuple[int, int]]:
    return {m.content: session.places[m.id] for m in session.messages if m.id in session.places}


@pytest.mark.parametrize("keeps", [True, False])
def test_an_edited_message_and_the_one_before_it_are_reached_from_each_other(
    engine: ScriptedEngine, store: Store, keeps: bool
) -> None:
    session = begun(engine, store if keeps else None, "one", "two", "three")
    session.edit(session.messages[2].id, "2")
    settle(engine, session)
    assert said(session) == ["one", "2"]
    assert marks(session) == {"2": (2, 2)}
    assert session.turn(session.messages[2].id, -1)
    assert said(session) == ["one", "two", "three"]
    assert marks(session) == {"two": (1, 2)}
    assert session.turn(session.messages[2].id, -1), "before the first one comes the last"
    assert said(session) == ["one", "2"]
    assert not session.turn(session.messages[0].id, 1), "it stands alone"


def test_after_a_restart_every_branch_is_reached(engine: ScriptedEngine, store: Store) -> None:
    session = begun(engine, store, "one", "two")
    session.regenerate()
    settle(engine, session)
    session.send("three")
    settle(engine, session)
    session.turn(session.messages[3].id, 1)
    assert said(session) == ["one", "two"]
    again = opened(engine, store)
    assert said(again) == ["one", "two"], "what was on view is on view again"
    assert list(again.places.values()) == [(1, 2)]
    again.turn(again.messages[3].id, 1)
    assert said(again) == ["one", "two", "three"], "its newest end"


def test_a_branch_is_on_view_again_as_it_was_left(engine: ScriptedEngine, store: Store) -> None:
    session = begun(engine, store, "one", "two")
    session.edit(session.messages[2].id, "2")
    settle(engine, session)
    session.turn(session.messages[2].id, 1)
    session.edit(session.messages[0].id, "1")
    settle(engine, session)
    session.turn(session.messages[0].id, 1)
    assert said(session) == ["one", "two"], "and not the newest one below"


def test_where_it_parts_is_known_by_one_query_and_no_text(
    engine: ScriptedEngine, store: Store
) -> None:
    session = begun(engine, store, "one", "two")
    session.edit(session.messages[0].id, "1")
    settle(engine, session)
    read: list[str] = []
    store._db._db.set_trace_callback(read.append)
    places = store.branches.places(session.conversation.id, session.messages[-1].id)
    store._db._db.set_trace_callback(None)
    assert len(read) == 1
    assert "content" not in read[0]
    assert [len(places[None]), len(places[session.messages[0].id])] == [2, 1]


def test_a_branch_that_cannot_be_read_leaves_the_one_on_view(
    engine: ScriptedEngine, store: Store
) -> None:
    session = begun(engine, store, "one")
    session.edit(session.messages[0].id, "1")
    settle(engine, session)
    again = opened(engine, store)
    assert again.places
    store._db._db.execute("UPDATE message SET usage = '{' WHERE content = 'one'")
    with pytest.raises(InvalidRequestError, match="damaged"):
        again.turn(again.messages[0].id, 1)
    assert said(again) == ["1"]


def test_a_title_follows_the_branch_on_view_unless_the_user_gave_it(
    engine: ScriptedEngine, store: Store
) -> None:
    session = begun(engine, store, "one", "two")
    session.edit(session.messages[0].id, "another")
    assert session.conversation.title == "another"
    assert engine.submissions[-1].origin.title == "another"
    settle(engine, session)
    session.turn(session.messages[0].id, 1)
    assert [c.title for c in store.conversations()] == ["one"]
    session.conversation.title, session.conversation.is_named = "Mine", True
    store.save_label(session.conversation, "title", "is_named")
    session.turn(session.messages[0].id, 1)
    assert [c.title for c in store.conversations()] == ["Mine"]
    assert opened(engine, store).conversation.is_named


def test_no_turn_of_two_programs_goes_from_view(
    engine: ScriptedEngine, store: Store, other: Store
) -> None:
    """Both had the chat open, and both said something."""
    begun(engine, store, "one")
    ours, theirs = opened(engine, store), opened(engine, other)
    assert ours.read_changes() == theirs.read_changes() == ""
    ours.send("ours")
    theirs.send("theirs")
    assert theirs.read_changes() == "Another program continued this chat: this is 2/2."
    settle(engine, ours, theirs)
    assert marks(theirs) == {"theirs": (2, 2)}
    assert ours.read_changes() == "Another program continued this chat: this is 1/2."
    assert marks(ours) == {"ours": (1, 2)}
    assert ours.read_changes() == "", "it is reported once"
    for session in (ours, theirs):
        session.close()
    again = opened(engine, store)
    assert len(again.places) == 1
    both = [said(again)[1]]
    again.turn(again.messages[2].id, 1)
    assert sorted([*both, said(again)[1]]) == ["ours", "theirs"]


def test_what_another_program_said_behind_what_is_on_view_comes_on_view(
    engine: ScriptedEngine, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(engine, store, "one")
    ours, theirs = opened(engine, store), opened(engine, other)
    ours.read_changes()
    theirs.send("two")
    assert ours.read_changes() == "Another program continued this chat."
    assert said(ours) == ["one", "two"]
    with pytest.raises(InvalidRequestError, match="another program is generating this reply"):
        ours.send("three")
    settle(engine, theirs)
    with monkeypatch.context() as patch:
        patch.delattr(Store, "branch")  # a long chat is not read again for its last message
        assert ours.read_changes() == ""
    assert ours.messages[-1].content == "You said: two"
    ours.send("three")
    settle(engine, ours)
    theirs.read_changes()
    assert said(theirs) == ["one", "two", "three"]


def test_a_reply_whose_program_died_is_waited_for_no_more(
    engine: ScriptedEngine, store: Store, tmp_path: Path
) -> None:
    begun(engine, store, "one")
    other = Store(tmp_path / "store.db")
    ours, theirs = opened(engine, store), opened(engine, other)
    theirs.send("two")
    ours.read_changes()
    assert ours.messages[-1].finish_reason is None
    other.close()
    ours.read_changes()
    error = ours.messages[-1].error
    assert error == RESTARTED


def test_nothing_is_read_where_no_other_program_wrote(
    engine: ScriptedEngine, store: Store, other: Store
) -> None:
    session = begun(engine, store, "one")
    session.read_changes()
    read: list[str] = []
    store._db._db.set_trace_callback(read.append)
    session.read_changes()
    assert read == ["PRAGMA data_version"]
    renamed = other.conversations()[0]
    renamed.title, renamed.is_named = "Theirs", True
    other.save_label(renamed, "title", "is_named")
    session.read_changes()
    store._db._db.set_trace_callback(None)
    assert session.conversation.title == "Theirs"


def test_a_turn_leaves_alone_what_another_program_made_of_the_chat(
    engine: ScriptedEngine, store: Store, other: Store
) -> None:
    session = begun(engine, store, "one")
    theirs = other.conversations()[0]
    theirs.system, theirs.sampling = "Be brief.", {"top_k": 3}
    theirs.title, theirs.is_named, theirs.is_archived = "Theirs", True, True
    theirs.pinned_at = 1.0
    other.save_settings(theirs)
    other.save_label(theirs, "title", "is_named", "is_archived", "pinned_at")
    session.send("two")
    settle(engine, session)
    (kept,) = store.conversations()
    assert (kept.system, kept.sampling) == ("Be brief.", {"top_k": 3})
    assert (kept.title, kept.is_named, kept.is_archived) == ("Theirs", True, True)
    assert kept.pinned_at == 1.0
    assert kept.leaf == session.conversation.leaf


def test_settings_archiving_and_pinning_by_another_program_are_read(
    engine: ScriptedEngine, store: Store, other: Store
) -> None:
    session = begun(engine, store, "one")
    session.read_changes()
    theirs = other.conversations()[0]
    theirs.system, theirs.sampling, theirs.is_archived = "Be brief.", {"top_k": 3}, True
    theirs.pinned_at = 1.0
    other.save_settings(theirs)
    other.save_label(theirs, "is_archived", "pinned_at")
    session.read_changes()
    assert session.conversation.is_archived
    assert session.conversation.pinned_at == 1.0
    session.send("two")
    submission = engine.submissions[-1]
    assert submission.sampling["top_k"] == 3
    assert submission.messages[0].content == "Be brief."


def test_a_store_that_cannot_be_read_keeps_no_chat_from_view(
    engine: ScriptedEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begun(engine, store, "one", "two")
    again = History(session.conversation, store)
    monkeypatch.setattr(store.branches, "version", _fail)
    assert again.places == {}
    assert again.read_changes() == ""


def _fail() -> int:
    raise StoreError("the disk broke")


def test_a_fork_shares_its_blocks_with_the_chat_that_it_comes_from(
    engine: ScriptedEngine, store: Store
) -> None:
    session = begun(engine, store, "one " * 40, "two " * 40, "three")
    session.conversation.sampling = {"top_k": 3}
    session.conversation.is_archived, session.conversation.pinned_at = True, 1.0
    forked = fork(store, session.conversation, session.messages[3].id)
    assert (forked.sampling, forked.forked_from) == ({"top_k": 3}, session.conversation.id)
    assert not forked.is_archived, "it is being gone on with"
    assert forked.pinned_at is None
    other = ChatSession(engine, forked, store)
    copies = other.messages
    assert [m.content for m in copies] == [m.content for m in session.messages[:4]]
    assert not {m.id for m in copies} & {m.id for m in session.messages}
    other.send("otherwise")
    context = engine.submissions[-1].context
    assert context is not None
    settle(engine, other)
    usage = other.messages[-1].usage
    assert usage is not None
    assert usage.cached_tokens == len(context.token_ids) // 16 * 16 > 100
    store.delete_conversation(session.conversation.id)
    again = store.conversation(forked.id)
    assert again is not None
    assert len(ChatSession(engine, again, store).messages) == 6, "it stands for itself"


def test_a_fork_of_a_fork_says_so_once(store: Store) -> None:
    chat = Conversation(title="Fork of the road")
    store.save_conversation(chat)
    forked = fork(store, chat, None)
    assert forked.title == "Fork of Fork of the road", "the chat itself is none"
    assert fork(store, forked, None).title == "Fork of Fork of the road"


def test_a_fork_that_cannot_be_kept_leaves_nothing(
    engine: ScriptedEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begun(engine, store, "one")

    def fails(_leaf: str, _conversation_id: str) -> str:
        raise StoreError("the disk broke")

    monkeypatch.setattr(store.branches, "copy", fails)
    with pytest.raises(StoreError, match="the disk broke"):
        fork(store, session.conversation, session.messages[-1].id)
    assert len(store.conversations()) == 1


def test_a_chat_that_ends_with_a_question_waits_for_nobody(store: Store) -> None:
    """As one may that was imported."""
    chat = Conversation(title="Imported")
    store.save_conversation(chat)
    asked = Message(conversation_id=chat.id, parent_id=None, role="user", content="Hi")
    store.save_message(asked)
    chat.leaf = asked.id
    store.save_conversation(chat)
    assert not History(chat, store).is_awaited
