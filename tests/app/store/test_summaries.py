"""The list of all chats, and when it is to be read again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.store.conversation import Conversation, Message
from app.store.store import Store


def test_a_reply_in_the_making_does_not_change_the_list(store: Store) -> None:
    chat = Conversation()
    reply = Message(conversation_id=chat.id, parent_id=None, role="assistant", content="")
    chat.leaf = reply.id
    with store.transaction():
        store.save_conversation(chat)
        store.save_message(reply)
    before = store.summaries.version()
    reply.content = "More"
    store.save_message(reply)
    assert store.summaries.version() == before


def test_pinned_chats_come_first_in_the_order_of_pinning(store: Store) -> None:
    chats = {n: Conversation(title=str(n), updated=float(n)) for n in range(1, 6)}
    for chat in chats.values():
        store.save_conversation(chat)
    for n, moment in ((2, 20.0), (4, 10.0), (5, 30.0)):
        chats[n].pinned_at = moment
        store.save_label(chats[n], "pinned_at")
    listed = [(one.title, one.is_pinned) for one in store.summaries.all()]
    pinned = [("4", True), ("2", True), ("5", True)]
    assert listed == [*pinned, ("3", False), ("1", False)]
    chats[2].pinned_at = None
    store.save_label(chats[2], "pinned_at")
    chats[2].updated = 9.0
    store.save_conversation(chats[2])
    assert [one.title for one in store.summaries.all()] == ["4", "5", "2", "3", "1"]


@pytest.mark.parametrize(
    "deed",
    [
        lambda store, chat: store.save_conversation(Conversation()),
        lambda store, chat: store.save_label(chat, "title"),
        lambda store, chat: store.save_label(chat, "pinned_at"),
        lambda store, chat: store.delete_conversation(chat.id),
        lambda store, chat: store.forget("screen", "", 2e9, 1),
    ],
)
def test_what_another_program_does_to_a_chat_does(
    store: Store, tmp_path: Path, deed: Callable[[Store, Conversation], object]
) -> None:
    chat = Conversation(updated=1.0)
    store.save_conversation(chat)
    before = store.summaries.version()
    with closing(Store(tmp_path / "store.db")) as other:
        deed(other, chat)
    assert store.summaries.version() != before
