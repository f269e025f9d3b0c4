"""Pages: which pages of a browser may ask where no key says who asks."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.requests import Request

from app.gateway.faults import Fault
from app.gateway.http.access import Access

_OWN_SITES = ("same-origin", "none")


class Pages:
    """Where there are no keys, a browser on this machine is let in by where it runs alone, and so
    is every page that it has open. So what it asks must come from our own page: the name in `Host`
    must be ours, for a name of somebody else's may be made to lead here (DNS rebinding), and
    `Origin` must be the same. A page of somebody else's cannot state a key.

    An address or a name without a dot is nobody's to make lead elsewhere: browsers take the one as
    it is, and no name server of the internet answers for the other.

    Args:
        hosts: names under which the gateway is reached; `*` is any.
        cors: origins whose pages may ask, too; `*` is all.
    """

    def __init__(self, access: Access, hosts: Collection[str], cors: Sequence[str] = ()) -> None:
        self._access = access
        self._hosts = frozenset(host.lower() for host in hosts)
        self._cors = frozenset(cors)

    def check_asker(self, request: Request) -> None:
        """Check that a page which asks for text, or for what is kept, may do so. What is no browser
        states no `Origin`; but nor does a browser that reads from what it takes for the page's own
        server.

        Raises:
            Fault: 403, it may not.
        """
        origin = request.headers.get("origin")
        if not self._access.is_open or self._cors & {origin, "*"}:
            return
        if origin is not None or request.method == "GET":
            self.check_own(request)

    def check_own(self, request: Request) -> None:
        """Check that our own page asks, or no page.

        Raises:
            Fault: 403, another one does.
        """
        self._check_host(request)
        self._check_origin(request)
        # What a picture or a script of another page asks for states no origin, but this.
        site = request.headers.get("sec-fetch-site", "none")
        if site not in _OWN_SITES:
            text = (
                f"Sec-Fetch-Site is {site!r}; without keys only the server's own page is answered"
            )
            raise Fault(403, text, reason="another origin")

    def _check_host(self, request: Request) -> None:
        stated = request.headers.get("host", "")
        name = _hostname(stated)
        if "*" in self._hosts or (name and (name in self._hosts or _is_nobodys(name))):
            return
        text = f"Host is {stated!r}; without keys it must be an address, a name without a dot, or"
        raise Fault(403, f"{text} one of http.hosts", reason="another host")

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


def _is_nobodys(name: str) -> bool:
    """Whether nobody can make a name lead to another server."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name
    return True


def is_loopback(host: str) -> bool:
    """Whether an address, or `localhost`, is this machine's own."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A socket for both families names its IPv4 clients so.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
