"""Search by words finds chats, at once after each change."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.store.conversation import Attachment, Conversation, Message
from app.store.database import Database, HinderedError
from app.store.query import QueryError, parse
from app.store.search import Search
from app.store.store import Store
from engine.api.lifecycle import FinishReason


@pytest.fixture
def search(store: Store, tmp_path: Path) -> Iterator[Search]:
    with closing(Search(tmp_path / "store.db")) as search:
        yield search


def keep(store: Store, title: str, *contents: str, model: str = "m", **kwargs: object) -> str:
    """A chat of these messages by turns; returns its id."""
    chat = Conversation(title=title, **kwargs)  # type: ignore[arg-type]
    store.save_conversation(chat)
    for index, content in enumerate(contents):
        reply = index % 2 == 1
        message = Message(
            conversation_id=chat.id,
            parent_id=chat.leaf,
            role="assistant" if reply else "user",
            content=content,
            created=chat.updated,
            model=model if reply else "",
            finish_reason=FinishReason.STOP if reply else None,
        )
        store.save_message(message)
        chat.leaf = message.id
    store.save_conversation(chat)
    return chat.id


def find(search: Search, text: str) -> list[str]:
    return [found.chat.title for found in search.find(parse(text))]


def hit(search: Search, number: int) -> str:
    found = search.hit(number)
    assert found is not None
    return found.text


def test_the_chat_that_has_the_words_side_by_side_comes_first(store: Store, search: Search) -> None:
    for n in range(100):
        keep(store, f"chat {n} about topic {n % 17}", "Hi", "Hello", updated=float(n))
    found = find(search, "topic 5")
    assert "chat 5 about topic 5" in found[:7]
    assert all(title.endswith("topic 5") for title in found[:6])
    assert "chat 95 about topic 10" not in found


def test_messages_are_found_and_titles_weigh_more(store: Store, search: Search) -> None:
    keep(store, "Holidays", "What of Kafka?", "The log of Kafka is kept for a week.")
    keep(store, "Kafka", "Hi", "Hello")
    keep(store, "Nothing", "Hi", "Hello")
    assert find(search, "kafka") == ["Kafka", "Holidays"]
    (hit,) = [found for found in search.find(parse("kept week")) if found.best]
    assert hit.best is not None
    assert hit.best.text == "The log of Kafka is kept for a week."
    assert find(search, "kept hello") == []


def test_hits_are_the_messages_that_have_the_words_themselves(store: Store, search: Search) -> None:
    keep(
        store, "Where otters live", "Where otters live", "In rivers.", "Otters? And otters?", "No."
    )
    (found,) = search.find(parse("otters"))
    assert [hit(search, number) for number in found.numbers] == [
        "Otters? And otters?",
        "Where otters live",
    ]
    assert found.best is not None
    assert found.best.text == "Otters? And otters?"


def test_where_the_title_alone_has_the_words_there_is_no_hit(store: Store, search: Search) -> None:
    keep(store, "Otters swim", "Hi", "Hello, otters")
    (found,) = search.find(parse("otters swim"))
    assert (found.numbers, found.best) == ((), None)


def test_words_may_be_shared_out_between_title_and_message(store: Store, search: Search) -> None:
    keep(store, "Trip to Rome", "Hi", "Hello", "Which hotel?", "None.")
    (found,) = search.find(parse("rome hotel"))
    assert [hit(search, number) for number in found.numbers] == ["Which hotel?"]


def test_others_write_while_the_index_is_made(
    store: Store, search: Search, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep(store, "Long", *(f"message {n}" for n in range(4)))
    with closing(Store(tmp_path / "store.db", busy_seconds=0.0)) as other:
        monkeypatch.setattr("time.sleep", lambda _seconds: keep(other, "New", "word"))
        monkeypatch.setattr("app.store.word_index._SLICE", 3)
        assert search.catch_up() == 5
    assert find(search, "word") == ["New"]


def test_of_equals_the_newer_one_comes_first(store: Store, search: Search) -> None:
    for n in (1, 3, 2):
        keep(store, f"chat {n}", "the same words", updated=float(n))
    assert find(search, "same") == ["chat 3", "chat 2", "chat 1"]


@pytest.mark.parametrize(
    ("text", "query", "is_found"),
    [
        ("a château on a hill", "chateau", True),
        ("a chateau on a hill", "CHÂTEAU", True),
        ("unification", "unif", True),
        ("unification", "unif x", False),
        ("unification of words", '"unif', False),
        ("one two three", '"two three"', True),
        ("one two three", '"three two"', False),
        ("我在東京都住", "東京", True),
        ("我在東京都住", "京東", False),
        ("こんにちは世界", "世界", True),
        ("สวัสดีครับ", "ครับ", True),
        ("x = foo_bar(1)", "foo_bar(1)", True),
        ("50% of AND/OR", "and/or", True),
    ],
)
def test_words(store: Store, search: Search, text: str, query: str, is_found: bool) -> None:
    keep(store, "title", text)
    assert find(search, query) == (["title"] if is_found else [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text())
def test_nothing_that_is_typed_is_an_error_of_syntax(search: Search, text: str) -> None:
    try:
        query = parse(text)
    except QueryError:
        return
    assert search.find(query) == []


def test_filters(store: Store, search: Search) -> None:
    day = 86400.0
    keep(store, "old", "Hi", "word", model="Qwen3-8B", updated=10 * day)
    keep(store, "new", "Hi", "word", model="llama", updated=20 * day)
    keep(store, "theirs", "Hi", "word", source="mqtt", updated=30 * day)
    keep(store, "put away", "Hi", "word", is_archived=True, pinned_at=1.0, updated=40 * day)
    assert find(search, "") == ["theirs", "new", "old"]
    assert find(search, "pinned:yes") == []
    assert find(search, "pinned:yes archived:yes word") == ["put away"]
    assert find(search, "pinned:no word") == ["theirs", "new", "old"]
    assert find(search, "word model:qwen") == ["old"]
    assert find(search, "model:qwen") == ["old"]
    assert find(search, "source:mqtt word") == ["theirs"]
    assert find(search, "source:you word") == ["new", "old"]
    assert find(search, "word after:1970-01-16 before:1970-01-26") == ["new"]
    assert find(search, "after:1970-01-16") == ["theirs", "new"]
    assert find(search, "word archived:yes") == ["put away", "theirs", "new", "old"]
    assert find(search, "word model:") == ["theirs", "new", "old"]


def test_dates_are_those_of_messages_with_words_and_without(store: Store, search: Search) -> None:
    day = 86400.0
    chat = store.conversation(keep(store, "long", "word", updated=10 * day))
    assert chat is not None
    chat.updated = 20 * day
    store.save_message(
        Message(
            conversation_id=chat.id,
            parent_id=chat.leaf,
            role="user",
            content="word",
            created=20 * day,
        )
    )
    store.save_conversation(chat)
    for words in ("", "word "):
        assert find(search, f"{words}before:1970-01-15") == ["long"]
        assert find(search, f"{words}after:1970-01-15") == ["long"]
        assert find(search, f"{words}after:1970-01-15 before:1970-01-17") == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("source:web", "source is 'web'; allowed are you, mqtt"),
        ("after:soon", "after is 'soon'; it must be a day such as 2026-11-01"),
        ("archived:x", "archived is 'x'; allowed are yes, no"),
        ("pinned:x", "pinned is 'x'; allowed are yes, no"),
    ],
)
def test_a_filter_that_cannot_be_is_told(text: str, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence):
        parse(text)


@pytest.mark.parametrize("text", ["??", "🦦", "_", '"??" -'])
def test_that_there_is_no_word_is_told(text: str) -> None:
    with pytest.raises(QueryError, match="has no word to look for"):
        parse(text)


@pytest.mark.parametrize("text", ["", "  ", '"', "model:", "?? model:qwen"])
def test_without_words_filters_alone_may_stand(text: str) -> None:
    assert parse(text).phrases == ()


def test_the_index_follows_what_becomes_of_chats(store: Store, search: Search) -> None:
    key = keep(store, "first", "question", "answer")
    assert find(search, "answer") == ["first"]
    chat = store.conversation(key)
    assert chat is not None
    chat.title = "renamed"
    store.save_label(chat, "title")
    assert find(search, "renamed") == ["renamed"]
    assert find(search, "first") == []
    store.delete_conversation(key)
    assert find(search, "answer") == []
    assert store.restore_conversation(key)
    assert find(search, "answer") == ["renamed"]
    store.delete_conversation(key)
    store.free_id(key)
    assert search.catch_up() == 2
    keep(store, "another", "words")  # it may take a number that is free
    assert find(search, "answer") == []
    assert find(search, "words") == ["another"]


def test_a_reply_is_taken_in_when_it_has_ended(store: Store, search: Search) -> None:
    chat = Conversation(title="chat")
    store.save_conversation(chat)
    search.catch_up()
    reply = Message(conversation_id=chat.id, parent_id=None, role="assistant", content="")
    for text in ("half", "half a reply"):
        reply.content = text
        store.save_message(reply)
        assert search.catch_up() == 0
    reply.finish_reason = FinishReason.STOP
    store.save_message(reply)
    store.save_message(reply)
    assert search.catch_up() == 1
    assert find(search, "half") == ["chat"]


def test_a_lost_or_damaged_index_is_made_anew(store: Store, tmp_path: Path) -> None:
    keep(store, "chat", "words")
    with closing(Search(tmp_path / "store.db")) as search:
        assert find(search, "words") == ["chat"]
    for spoil in (Path.unlink, lambda path: path.write_bytes(b"x" * 9000)):
        spoil(tmp_path / "store.db-words")
        with closing(Search(tmp_path / "store.db")) as search:
            assert find(search, "words") == ["chat"]


def test_damage_that_only_a_search_meets_is_mended(
    store: Store, search: Search, tmp_path: Path
) -> None:
    keep(store, "chat", *(f"word{n} stands here" for n in range(200)))
    search.catch_up()
    with closing(sqlite3.connect(tmp_path / "store.db-words")) as index, index:
        index.execute("UPDATE words_data SET block = x'00' WHERE id > 10")
    search.close()
    assert find(search, "word150") == ["chat"]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"x" * 9000)])
def test_what_one_program_makes_anew_others_go_on_with(
    store: Store, search: Search, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    with closing(Search(tmp_path / "store.db")) as other:
        keep(store, "first", "words")
        assert find(search, "words") == find(other, "words") == ["first"]
        spoil(tmp_path / "store.db-words")
        assert find(search, "words") == find(other, "words") == ["first"]
        keep(store, "second", "other words")
        assert find(search, "other") == find(other, "other") == ["second"]
        keep(store, "third", "more words")
        assert find(other, "more") == find(search, "more") == ["third"]


def test_an_index_in_use_is_not_made_anew(
    store: Store, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.database.BUSY_SECONDS", 0.0)
    keep(store, "chat", "words")
    search.catch_up()
    index = tmp_path / "store.db-words"
    before = index.read_bytes()
    keep(store, "another", "words")
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(HinderedError, match="locked"):
            search.catch_up()
    assert index.read_bytes() == before
    assert find(search, "words") == ["another", "chat"]


def test_what_is_noted_as_taken_in_survives_a_crash(
    store: Store, search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, "chat", "some", "words")
    search.catch_up()
    keep(store, "another", "words")
    write, kept = Database.write, []

    def spied(db: Database, statement: str, values: tuple[object, ...]) -> int:
        if statement.startswith("DELETE FROM unindexed"):
            with closing(sqlite3.connect(tmp_path / "store.db-words")) as index:
                kept.append(index.execute("SELECT count(*) FROM words").fetchone())
        return write(db, statement, values)

    monkeypatch.setattr(Database, "write", spied)
    assert search.catch_up() == 1
    assert kept == [(3,)]


def test_what_changes_while_it_is_taken_in_is_taken_in_again(
    store: Store, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    search.catch_up()
    (message,) = store.messages(keep(store, "chat", "words"))
    transaction, texts = Database.transaction, iter(("words", "other words"))

    def spied(db: Database) -> AbstractContextManager[None]:
        message.content = next(texts, message.content)
        store.save_message(message)
        return transaction(db)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "transaction", spied)
        search.catch_up()
    assert find(search, "other") == ["chat"]


def test_what_an_older_store_has_is_found(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store.db")) as store:
        keep(store, "chat", "words")
    with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
        db.execute("DELETE FROM unindexed")
    with closing(Search(tmp_path / "store.db")) as search:
        assert find(search, "words") == ["chat"]


def test_attachments_are_searched_by_name_and_text(store: Store, search: Search) -> None:
    (message,) = store.messages(keep(store, "chat", "What is this?"))
    chat = Conversation(title="with a file")
    store.save_conversation(chat)
    file = Attachment("notes.txt", "Otters hold hands.")
    store.save_message(
        replace(message, id="m", conversation_id=chat.id, attachments=(file,), content="See:")
    )
    for words in ("hands", "notes.txt", "see hands"):
        (found,) = search.find(parse(words))
        assert found.best is not None
        assert found.best.text == "See:\n\nnotes.txt:\nOtters hold hands."


def test_damaged_attachments_are_left_out(store: Store, search: Search, tmp_path: Path) -> None:
    keep(store, "chat", "words")
    for damaged in ("[", "7", '["x"]', "[" * 100_000):
        with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
            db.execute("UPDATE message SET attachments = ?", (damaged,))
            db.execute("INSERT OR IGNORE INTO unindexed SELECT number FROM message")
        assert find(search, "words") == ["chat"]


def test_the_index_of_another_version_is_made_anew(store: Store, tmp_path: Path) -> None:
    keep(store, "chat", "words")
    with closing(Search(tmp_path / "store.db")) as search:
        search.catch_up()
    with closing(sqlite3.connect(tmp_path / "store.db-words")) as index, index:
        index.execute("DELETE FROM words")
        index.execute("PRAGMA user_version = 0")
    with closing(Search(tmp_path / "store.db")) as search:
        assert find(search, "words") == ["chat"]


def test_without_fts5_titles_are_searched(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.word_index.has_fts5", lambda: False)
    keep(store, "Some title", "words")
    with closing(Search(tmp_path / "store.db")) as search:
        (found,) = search.find(parse("TITLE some"))
        assert (found.chat.title, found.best) == ("Some title", None)
        assert find(search, "words") == []
