"""Visitors: identifies viewers of the live data, and checks whether they are operators."""

from __future__ import annotations

from typing import NamedTuple

from starlette.requests import Request

from app.gateway.faults import Fault
from app.gateway.http.access import Access
from app.gateway.http.pages import Pages, is_loopback


class Visitor(NamedTuple):
    """A caller.

    Attributes:
        is_operator: whether they may see other users' requests, and change the knobs.
        who: the owner of their places: the user, or the address if there are no keys.
    """

    user: str
    is_operator: bool
    who: str


class Visitors:
    """Identifies visitors by their keys; without keys, by the page that they came from."""

    def __init__(self, access: Access, pages: Pages) -> None:
        self._access = access
        self._pages = pages

    def visitor(self, request: Request) -> Visitor:
        """Identify the caller.

        Raises:
            Fault: 401, the key is missing or wrong; 403, another page than ours sent the request.
        """
        user = self._access.caller(request.headers)
        if not self._access.is_open:
            return Visitor(user, user in self._access.operators, user)
        self._pages.check_own(request)
        host = "" if request.client is None else request.client.host
        return Visitor(user, is_loopback(host), host)

    def operator(self, request: Request) -> str:
        """The name of the caller, who must be an operator.

        Raises:
            Fault: as in `visitor`; or 403, the caller is no operator.
        """
        visitor = self.visitor(request)
        if visitor.is_operator:
            return visitor.user
        if self._access.is_open:
            text = "without keys, knobs are turned from this machine only"
        else:
            text = f"user {visitor.user!r} may not turn knobs; a key with operator = true may"
        raise Fault(403, text, reason="no operator")
