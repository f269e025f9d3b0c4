"""LastView: which chat is on view, kept for the next start."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from app.screens.chats.open_session import OpenSession
from app.store.database import StoreError
from app.store.on_view import OnView

log = logging.getLogger(__name__)


class LastView:
    """Keeps it in the store. If that fails, the next start shows another chat, which is no reason
    to disturb anybody: it is only logged."""

    def __init__(self, store: OnView) -> None:
        self._store = store

    def find(self, sessions: Iterable[OpenSession]) -> OpenSession | None:
        """The one of these that was on view last; None if it is not among them."""
        try:
            key = self._store.key()
        except StoreError as error:
            log.error("%s", error)
            return None
        return next((session for session in sessions if session.key == key), None)

    def keep(self, session: OpenSession) -> None:
        try:
            self._store.keep(session.key)
        except StoreError as error:
            log.error("which chat is on view is not kept: %s", error)
