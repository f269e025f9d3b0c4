"""Chats as a file: all of them comes back, and what is wrong is named."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.conversations.chat_file import ChatFileError, decode, dump, import_chats, load
from app.store.conversation import Asked, Attachment, Conversation, Message
from app.store.database import StoreError
from app.store.store import Store
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.stream import Usage


def a_chat() -> tuple[Conversation, list[Message]]:
    """A chat of two branches that has all there is."""
    chat = Conversation(title="Trip", system="Be brief.", sampling={"temperature": 0.2})
    chat.pinned_at = 1.0
    question = Message(
        conversation_id=chat.id,
        parent_id=None,
        role="user",
        content="東京 “now”",
        attachments=(Attachment("a.txt", "text"),),
    )
    replies = [
        Message(
            conversation_id=chat.id,
            parent_id=question.id,
            role="assistant",
            content=text,
            thinking="hm",
            model="m",
            request_id=text,
            finish_reason=FinishReason.STOP,
            usage=Usage(3, 4, 0),
            timings=Timings(ttft=0.2, tpot=0.01),
            asked=Asked("Be brief.", {"temperature": 0.2}),
        )
        for text in ("one", "other")
    ]
    replies[1].finish_reason = FinishReason.ERROR
    replies[1].error = ErrorInfo("engine_error", "broke")
    chat.leaf = replies[0].id
    return chat, [question, *replies]


def bare(message: Message, place: dict[str, int]) -> tuple[object, ...]:
    """A message without its ids, but with its place in the tree."""
    parent = None if message.parent_id is None else place[message.parent_id]
    return parent, replace(message, id="", parent_id=None, conversation_id="", request_id=None)


def shape(messages: list[Message]) -> list[tuple[object, ...]]:
    place = {message.id: n for n, message in enumerate(messages)}
    return [bare(message, place) for message in messages]


def test_all_of_a_chat_comes_back_under_ids_of_its_own(store: Store) -> None:
    chat, messages = a_chat()
    import_chats(store, [(chat, messages)])
    text = dump((c, store.messages(c.id)) for c in store.conversations())
    loaded, wrong = load(text)
    assert wrong == []
    import_chats(store, loaded)
    one, other = store.conversations()
    assert other.id != one.id
    assert replace(other, id="", leaf=None, is_open=True) == replace(one, id="", leaf=None)
    assert shape(store.messages(other.id)) == shape(messages)
    kept = store.messages(other.id)
    assert other.leaf == kept[1].id


def test_others_write_while_chats_are_taken_in(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.conversations.chat_file._PORTION", 1)
    seen = []
    with closing(Store(tmp_path / "store.db", busy_seconds=0.0)) as other:

        def write(_seconds: float) -> None:
            other.save_conversation(Conversation(title="other"))
            seen.append({chat.title for chat in other.conversations()})

        monkeypatch.setattr("time.sleep", write)
        import_chats(store, [a_chat(), a_chat(), a_chat()])
    assert seen == [{"other"}] * 2
    assert sorted(chat.title for chat in store.conversations()) == ["Trip"] * 3 + ["other"] * 2


def test_of_a_file_that_cannot_be_kept_as_a_whole_nothing_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.conversations.chat_file._PORTION", 1)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    before, (last, messages) = a_chat(), a_chat()
    messages[0].parent_id = "nobody"
    with pytest.raises(StoreError):
        import_chats(store, [before, (last, messages)])
    assert store.conversations() == []
    assert not store.restore_conversation(before[0].id)


HEAD = '{"format": "batchdeck chats", "version": '


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is not JSON (line 1, column 1)"),
        ("[]", "it is not JSON written by `tui export`"),
        ("{}", "it is not JSON written by `tui export`"),
        (HEAD + '2, "chats": []}', "its version is 2; it must be 1"),
        (HEAD + '1, "chats": 1}', "it has no list of chats"),
        (HEAD + '1, "chats": [1]}', "its list has no chats"),
        ("[" * 9999, "it is not readable JSON"),
        ("1" * 9999, "it is not readable JSON"),
    ],
)
def test_another_file_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ChatFileError) as caught:
        load(text)
    assert str(caught.value) == f"it is not a file of chats: {sentence}"


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ChatFileError, match="it is not UTF-8 text"):
        decode(b"ab\xff")
    assert decode("\ufeffé".encode()) == "é"


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("title",), 3, "title is 3; it should be a valid string"),
        (("title",), "\ud83d", "a text has half a surrogate pair; it must be valid Unicode"),
        (("messages", 1, "content"), "\ud83d", "a text has half a surrogate pair"),
        (("updated",), float("inf"), "updated is inf; it should be less than or equal to"),
        (("created",), float("nan"), "created is nan; it should be less than or equal"),
        (("messages", 1, "created"), 1e300, "messages.1.created is 1e+300; it should be less"),
        (("leaf",), "x", "leaf is 'x'; it must be the id of a message, or null"),
        (("messages", 1, "role"), "bot", "messages.1.role is 'bot'; it should be 'user'"),
        (("messages", 1, "parent_id"), "x", "messages.1.parent_id is 'x'; it must be the id of a"),
        (("messages", 1, "usage"), {"prompt_tokens": "x"}, "messages.1.usage."),
        (("messages", 1, "usage"), 7, "messages.1.usage is 7; it should be a dictionary"),
        (("messages", 1), {}, "messages.1.id is missing"),
        (("messages", 0, "content"), None, "messages.0.content is None; it should be a valid"),
    ],
)
def test_what_is_wrong_is_named_and_the_others_are_taken(
    path: tuple[str | int, ...], value: object, sentence: str
) -> None:
    whole = json.loads(dump([a_chat(), a_chat()]))
    at = whole["chats"][0]
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    loaded, (told,) = load(json.dumps(whole))
    assert len(loaded) == 1
    assert told.startswith("chats.0 (")
    assert sentence in told
