"""Visitors: who looks at the live data, and whether they may see all of it and turn the knobs."""

from __future__ import annotations

from typing import NamedTuple

from starlette.requests import Request

from app.gateway.faults import Fault
from app.gateway.http.access import Access
from app.gateway.http.pages import Pages, is_loopback


class Visitor(NamedTuple):
    """Who asks.

    Attributes:
        is_operator: whether they may see what others ask, and turn the knobs.
        who: by whom places are counted: the user, or the address where there are no keys.
    """

    user: str
    is_operator: bool
    who: str


class Visitors:
    """Tells visitors by their keys; where there are none, by the page that they look from."""

    def __init__(self, access: Access, pages: Pages) -> None:
        self._access = access
        self._pages = pages

    def visitor(self, request: Request) -> Visitor:
        """Who asks.

        Raises:
            Fault: 401, the key is missing or wrong; 403, it is asked by another page than ours.
        """
        user = self._access.caller(request.headers)
        if not self._access.is_open:
            return Visitor(user, user in self._access.operators, user)
        self._pages.check_own(request)
        host = "" if request.client is None else request.client.host
        return Visitor(user, is_loopback(host), host)

    def operator(self, request: Request) -> str:
        """The name of an operator who asks.

        Raises:
            Fault: as of `visitor`; or 403, it is no operator.
        """
        visitor = self.visitor(request)
        if visitor.is_operator:
            return visitor.user
        if self._access.is_open:
            text = "without keys, knobs are turned from this machine only"
        else:
            text = f"user {visitor.user!r} may not turn knobs; a key with operator = true may"
        raise Fault(403, text, reason="no operator")
