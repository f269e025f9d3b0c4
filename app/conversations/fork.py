"""Fork: a new chat from the first messages of another one."""

from __future__ import annotations

import time
from dataclasses import replace

from app.store.conversation import Conversation, new_id
from app.store.store import Store

_FORK = "Fork of "


def fork(store: Store, conversation: Conversation, leaf: str | None) -> Conversation:
    """Create a chat from the branch of another one up to a message, with its settings.

    It gets the token ids of that branch too, so that the common beginning is in the KV cache once.

    Args:
        leaf: the last common message; None if there is none.

    Raises:
        StoreError: it cannot be stored.
    """
    now = time.time()
    # A fork of a fork is named after their common origin.
    title = conversation.title
    title = title.removeprefix(_FORK) if conversation.forked_from is not None else title
    forked = replace(
        conversation,
        id=new_id(),
        title=f"{_FORK}{title}",
        is_named=leaf is None,
        created=now,
        updated=now,
        leaf=None,
        number=None,
        is_open=True,
        is_archived=False,
        pinned_at=None,
        forked_from=conversation.id,
    )
    store.number(forked)
    with store.transaction():
        store.save_conversation(forked)
        if leaf is not None:
            forked.leaf = store.branches.copy(leaf, forked.id)
            store.save_conversation(forked)
    return forked
