"""Access and Pages: who may send requests: callers with keys, and pages of a browser without."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

from starlette.requests import Request

from app.gateway.faults import Fault

# Every caller, if no keys are set.
ANYBODY = "anybody"
# Callers without a known key, if keys are set: refusals are counted under this name.
STRANGER = "stranger"
_OWN_SITES = ("same-origin", "none")


class Access:
    """Stores keys by their digests, so that the time of a lookup does not depend on how much of a
    key is right.

    Args:
        keys: by the names of their owners; without keys, all callers are admitted.
        operators: those of them who may see other users' requests, and change the knobs.

    Attributes:
        is_open: whether there are no keys.
    """

    def __init__(self, keys: Mapping[str, str], operators: Collection[str] = ()) -> None:
        self._names = {_digest(key): name for name, key in keys.items()}
        self.operators = frozenset(operators)
        self.is_open = not keys

    def caller(self, headers: Mapping[str, str]) -> str:
        """The name of the caller.

        Args:
            headers: by lower-case names.

        Raises:
            Fault: 401, there is no key or a wrong one.
        """
        if not self._names:
            return ANYBODY
        scheme, _, stated = headers.get("authorization", "").partition(" ")
        key = stated.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            text = "there is no API key; state it as Authorization: Bearer KEY or x-api-key: KEY"
            raise Fault(401, text, reason="no key")
        name = self._names.get(_digest(key))
        if name is None:
            raise Fault(401, "the API key is not known here", reason="unknown key")
        return name

    def asker(self, headers: Mapping[str, str]) -> str:
        """The name of the caller, or `STRANGER`; headers are as for `caller`."""
        try:
            return self.caller(headers)
        except Fault:
            return STRANGER


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


class Pages:
    """Without keys, a browser on this machine is admitted merely by where it runs, and so is every
    page that it has open. So a page's requests are accepted only from our own page: the name in
    `Host` must be ours, because a foreign name may be made to resolve to this server (DNS
    rebinding), and `Origin` must be the same. A foreign page cannot state a key.

    An address, or a name without a dot, cannot be made to resolve elsewhere: browsers use an
    address as it is, and no name server of the internet answers for the other.

    Args:
        hosts: names of the gateway; `*` is any.
        cors: origins whose pages are allowed, too; `*` is all.
    """

    def __init__(self, access: Access, hosts: Collection[str], cors: Sequence[str] = ()) -> None:
        self._access = access
        self._hosts = frozenset(host.lower() for host in hosts)
        self._cors = frozenset(cors)

    def check_asker(self, request: Request) -> None:
        """Check that a page which requests text or stored data may do so. Clients other than
        browsers send no `Origin`; but neither does a browser for a GET to what it believes is the
        page's own server.

        Raises:
            Fault: 403, it may not.
        """
        origin = request.headers.get("origin")
        if not self._access.is_open or self._cors & {origin, "*"}:
            return
        if origin is not None or request.method == "GET":
            self.check_own(request)

    def check_own(self, request: Request) -> None:
        """Check that the request comes from our own page, or from no page.

        Raises:
            Fault: 403, it comes from another one.
        """
        self._check_host(request)
        self._check_origin(request)
        # Requests for a picture or a script by another page have no origin, but this header.
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
    """The name in a Host header, in lower case; empty if there is none."""
    try:
        return urlsplit(f"//{stated}").hostname or ""
    except ValueError:
        return ""


def _is_nobodys(name: str) -> bool:
    """Whether a name cannot be made to resolve to another server."""
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
    # A dual-stack socket reports its IPv4 clients in this form.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
