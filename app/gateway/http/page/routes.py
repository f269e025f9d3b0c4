"""page_routes: the routes of the page, and of its data."""

from __future__ import annotations

from starlette.routing import Route

from app.gateway.http.page.asset import FOLDER, Asset
from app.gateway.http.page.live import Live
from app.gateway.http.page.live_feed import LiveFeed
from app.gateway.http.page.live_knobs import LiveKnobs
from app.gateway.http.page.visitors import Visitors
from app.gateway.http.service import Service

MODULES = sorted(path.name for path in FOLDER.glob("*.js"))
ASSETS = ("page.css", "icon.svg", *MODULES)


def page_routes(service: Service, feed: LiveFeed) -> list[Route]:
    visitors = Visitors(service.access, service.pages)
    return [
        Route("/", Asset("index.html"), methods=["GET"]),
        *(Route(f"/page/{name}", Asset(name), methods=["GET"]) for name in ASSETS),
        Route("/live", Live(service, visitors, feed), methods=["GET"]),
        Route("/live/knobs", LiveKnobs(service, visitors), methods=["POST"]),
    ]
