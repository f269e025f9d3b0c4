"""The store that the interface starts with."""

from __future__ import annotations

from pathlib import Path

from app.store.store import Store
from benchmarks.interface.stored import LAST_WORD, store_chats


def test_all_chats_are_open_and_the_last_one_ends_with_a_word_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "batchdeck.db"
    store_chats(path, chats=3, messages=12)
    store = Store(path)
    chats = store.conversations(open_only=True)
    branches = [store.branch(chat.leaf) for chat in chats if chat.leaf is not None]
    store.close()
    assert [len(branch) for branch in branches] == [4, 4, 5]
    said = [m.content for branch in branches for m in branch]
    assert [text for text in said if LAST_WORD in text] == [said[-1]]
    assert max(chats, key=lambda chat: chat.updated) is chats[-1]
