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


@pytest.mark.parametrize(
    "deed",
    [
        lambda store, chat: store.save_conversation(Conversation()),
        lambda store, chat: store.save_label(chat, "title"),
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
