"""Visitors: who looks at the live data, and whether they may see all of it and turn the knobs."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from app.gateway.faults import Fault
from app.gateway.http.access import Access


class Visitor(NamedTuple):
    """Who asks.

    Attributes:
        is_operator: whether they may see what others ask, and turn the knobs.
    """

    user: str
    is_operator: bool


class Visitors:
    """Tells visitors by their keys.

    Where there are no keys, a browser on this machine is let in by where it runs alone, and so is
    every page that it has open. So what it asks must come from our own page: the name in `Host`
    must be ours, for a name of somebody else's may be made to lead here (DNS rebinding), and
    `Origin`, where there is one, must be the same.

    Args:
        host: where the settings have the gateway listen.
    """

    def __init__(self, access: Access, host: str) -> None:
        self._access = access
        self._host = host.lower()

    def visitor(self, request: Request) -> Visitor:
        """Who asks.

        Raises:
            Fault: 401, the key is missing or wrong; 403, it is asked by another page than ours.
        """
        user = self._access.caller(request.headers)
        if not self._access.is_open:
            return Visitor(user, user in self._access.operators)
        self._check_host(request)
        self._check_origin(request)
        client = request.client
        return Visitor(user, client is not None and _is_loopback(client.host))

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

    def _check_host(self, request: Request) -> None:
        stated = request.headers.get("host", "")
        name = _hostname(stated)
        # The address at which the connection came in: nobody's name server can change that.
        server = request.scope.get("server") or ("", 0)
        if name and (_is_loopback(name) or name in (self._host, str(server[0]).lower())):
            return
        text = f"Host is {stated!r}; without keys it must be localhost, or where the server listens"
        raise Fault(403, text, reason="another host")

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            text = f"Origin is {origin!r}; without keys only the server's own page is answered"
            raise Fault(403, text, reason="another origin")


def _hostname(stated: str) -> str:
    """The name in a Host header, in small letters; empty if there is none."""
    try:
        return urlsplit(f"//{stated}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A socket for both families names its IPv4 clients so.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
