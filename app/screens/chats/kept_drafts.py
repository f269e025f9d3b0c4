"""kept_drafts: what is written in a chat and not sent, as the store keeps it."""

from __future__ import annotations

import logging
from dataclasses import replace

from app.screens.chats.open_session import OpenSession
from app.store.database import StoreError
from app.store.drafts import Draft
from app.store.store import Store

log = logging.getLogger(__name__)


def draft_of(session: OpenSession, store: Store) -> Draft:
    """What is written in a chat and not sent."""
    if session.draft is None:
        try:
            session.draft = store.drafts.of(session.key) if session.is_own else Draft()
        except StoreError as error:
            log.error("%s", error)
            session.draft = Draft()
        ids = {message.id for message in session.chat.messages}
        if session.draft.edited not in ids:
            session.draft = replace(session.draft, edited=None, aside=None)
        session.kept = session.draft
    return session.draft


def keep_draft(session: OpenSession, draft: Draft, store: Store) -> bool:
    """Have the store keep what is written in a chat, also in one where nothing was said yet.

    Returns:
        whether there was something to keep.

    Raises:
        StoreError: it could not.
    """
    if not session.is_own or draft == session.kept:
        return False
    is_new = session.is_empty
    with store.transaction():
        if is_new and draft:
            store.save_conversation(session.chat.conversation)
        store.drafts.save(session.key, draft, session.kept)
        if is_new and not draft:
            store.delete_conversation(session.key)
            store.free_id(session.key)
    session.kept = draft
    return True
