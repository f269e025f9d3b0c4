"""Marks: the state of a chat, as tabs and sidebar show it."""

from __future__ import annotations

from collections.abc import Mapping

from app.screens.chats.entries import is_ahead
from app.screens.chats.open_session import OpenSession
from engine.api.snapshot import RequestView
from widgets.glyphs import Mark, state_mark


def mark_of(session: OpenSession, views: Mapping[str, RequestView], paused: bool) -> Mark:
    """The state of a session: that of a reply in the making, otherwise whether the last one
    failed."""
    if session.chat.is_busy:
        view = views.get(session.request_id)
        if is_ahead(session, view):
            return Mark.DECODE
        # Until the next snapshot, the request before may still be listed as ended, and the new one
        # may not be listed yet.
        return state_mark(view, paused) if view and view.finish_reason is None else Mark.QUEUED
    return Mark.FAILED if session.has_failed else Mark.IDLE
