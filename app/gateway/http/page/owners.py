"""Owners: whose chats a visitor of the page reads and writes."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from starlette.requests import Request

from app.gateway.faults import Fault
from app.gateway.http.page.live import Visitors
from app.gateway.sources import HTTP
from app.store.conversation import Conversation, new_id

SCREEN = "screen"
# The header in which a browser states its secret, by which its chats are found without a key.
BROWSER = "x-batchdeck-browser"
# The ids and the users of such chats begin with this.
GUEST = "guest-"
_SECRET = re.compile(r"[0-9a-f]{32,64}")


class Owner(NamedTuple):
    """The user and the source of chats.

    Attributes:
        asker: the name under which their requests are counted.
        is_guest: whether the owner is a browser without a key.
    """

    user: str
    source: str
    asker: str
    is_guest: bool = False

    def has(self, chat: Conversation) -> bool:
        """Whether a chat is the owner's."""
        return (chat.user, chat.source) == (self.user, self.source)

    def new_id(self) -> str:
        """An id for a chat of the owner."""
        return f"{GUEST}{new_id()}" if self.is_guest else new_id()


class Owners:
    """An operator has the chats of the screen, the holder of another key has their own, and so has
    each browser on another machine where there are no keys."""

    def __init__(self, visitors: Visitors, *, is_open: bool) -> None:
        self._visitors = visitors
        self._is_open = is_open

    def owner(self, request: Request) -> Owner:
        """The owner of the caller's chats.

        Raises:
            Fault: as `Visitors.visitor`; or 400, the browser states no secret and has no key.
        """
        visitor = self._visitors.visitor(request)
        if visitor.is_operator:
            return Owner("local", SCREEN, visitor.user)
        if not self._is_open:
            return Owner(visitor.user, HTTP, visitor.user)
        secret = request.headers.get(BROWSER, "")
        if not _SECRET.fullmatch(secret):
            text = f"{BROWSER} is missing; without keys it must be 32 to 64 hexadecimal digits"
            raise Fault(400, text, reason="no browser")
        digest = hashlib.sha256(secret.encode()).hexdigest()[:16]
        return Owner(f"{GUEST}{digest}", HTTP, visitor.user, is_guest=True)
