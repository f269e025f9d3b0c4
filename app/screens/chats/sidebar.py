"""Sidebar: shows the present state of all chats beside the one on view."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from app.gateway.sources import THEIRS
from app.screens.chats.entries import mark_of
from app.screens.chats.open_session import UNTITLED, OpenSession
from app.screens.chats.sessions import SessionList
from app.store.database import StoreError
from app.store.summaries import ChatSummary
from engine.api.snapshot import RequestView
from widgets.chat.chat_list import ChatList, ChatRow
from widgets.chat_number import ChatNumber
from widgets.glyphs import UNICODE, Mark

log = logging.getLogger(__name__)


class Sidebar:
    """Reads the chats again when the list of them has changed, and only while they are on view.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(
        self, sessions: SessionList, view: ChatList, clock: Callable[[], float] = time.time
    ) -> None:
        self._sessions = sessions
        self._view = view
        self._clock = clock
        self._version: int | None = None
        self._listed: dict[str, ChatSummary] = {}
        self._open: dict[str, OpenSession] = {}
        self._views: Mapping[str, RequestView] = {}
        self._paused = False
        self._trouble = ""

    def update(self, views: Mapping[str, RequestView], paused: bool) -> None:
        """Update the view.

        Args:
            views: the requests of the newest snapshot by id.
            paused: whether the engine is paused.
        """
        if not self._view.is_on_screen:
            return
        sessions = self._sessions
        try:
            version = sessions.store.summaries.version()
            if version != self._version:
                self._listed = {one.id: one for one in sessions.store.summaries.all()}
                self._version = version
        except StoreError as error:
            # The rows that were read before stay. Logged once: this runs many times a second.
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("%s", error)
            return
        self._open = {s.key: s for s in (*sessions.closed, *sessions.sessions)}
        self._views, self._paused = views, paused
        new = [key for key in self._open if key not in self._listed]
        self._view.show([*reversed(new), *self._listed], self._row, sessions.current.key)

    def _row(self, key: str) -> ChatRow:
        listed, session = self._listed.get(key), self._open.get(key)
        title, number, model, age, mark = UNTITLED, None, "", "", Mark.IDLE
        if listed is not None:
            title, model = listed.title or UNTITLED, listed.model
            if listed.source in THEIRS:
                title = f"@{listed.user} {title}"
            age = _age(self._clock() - listed.updated)
            number = self._sessions.numbering.letter_of(key)
            if listed.number is not None:
                number = ChatNumber(listed.number)
        is_pinned = listed is not None and listed.is_pinned
        unread = False
        if session is not None:
            title, unread = session.title, session.unread
            number = self._sessions.number_of(session)
            mark = mark_of(session, self._views, self._paused)
        is_open = session is not None
        return ChatRow(UNICODE.fit(title), number, mark, unread, model, age, is_open, is_pinned)


def _age(seconds: float) -> str:
    """How long ago something was, in one unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return "now"
