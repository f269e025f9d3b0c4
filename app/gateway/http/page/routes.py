"""page_routes: the files of the page with their headers, and the routes of its data."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.gateway.http.page.chat_routes import chat_routes
from app.gateway.http.page.chats import PageChats
from app.gateway.http.page.live import Live, LiveKnobs, Visitors
from app.gateway.http.page.live_feed import LiveFeed
from app.gateway.http.page.owners import Owners
from app.gateway.http.service import Service

FOLDER = Path(__file__).parent
MODULES = sorted(path.name for path in FOLDER.glob("*.js"))
ASSETS = ("page.css", "icon.svg", *MODULES)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Only the files here run or load, no text can become HTML, and no other page may show this one in a
# frame.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


class Asset:
    """Serves one file, which is read once. It needs no key, because it has no private data."""

    def __init__(self, name: str) -> None:
        file = FOLDER / name
        self._content = file.read_bytes()
        self._headers = {
            "content-type": _TYPES[file.suffix],
            "content-security-policy": POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            # The next version of the program has other files under the same names.
            "cache-control": "no-cache",
            "etag": f'"{hashlib.sha256(self._content).hexdigest()[:32]}"',
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = Request(scope).headers.get("if-none-match", "")
        if known == self._headers["etag"]:
            response = Response(status_code=304, headers=self._headers)
        else:
            response = Response(self._content, headers=self._headers)
        await response(scope, receive, send)


def page_routes(service: Service, feed: LiveFeed, chats: PageChats) -> list[Route]:
    visitors = Visitors(service.access, service.pages)
    return [
        Route("/", Asset("index.html"), methods=["GET"]),
        *(Route(f"/page/{name}", Asset(name), methods=["GET"]) for name in ASSETS),
        Route("/live", Live(service, visitors, feed), methods=["GET"]),
        Route("/live/knobs", LiveKnobs(service, visitors), methods=["POST"]),
        *chat_routes(service, Owners(visitors, is_open=service.access.is_open), chats),
    ]
