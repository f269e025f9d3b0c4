"""make_application: the HTTP routes, and the middleware before them."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from app.gateway.faults import TYPES, Fault
from app.gateway.http.chat_completions import ChatCompletions
from app.gateway.http.completions import Completions
from app.gateway.http.endpoint import error_body, refusal
from app.gateway.http.messages import MessageCount, Messages
from app.gateway.http.metrics.exposition import Scrape
from app.gateway.http.models import Health, Models, Version
from app.gateway.http.openapi import OpenApi
from app.gateway.http.response_memory import ResponseMemory
from app.gateway.http.responses import OneResponse, Responses
from app.gateway.http.service import Service
from app.gateway.http.tokens import Detokenize, Tokenize


def make_application(
    service: Service,
    cors: Sequence[str],
    metrics: Collector,
    batches: Sequence[Route],
    page: Sequence[Route],
    *,
    metrics_open: bool,
) -> Starlette:
    """
    Args:
        cors: origins whose pages may send requests; without any, only the server's own page may.
        metrics: the collector that Prometheus scrapes.
        batches: the routes of files and batches.
        page: the routes of the page, which are not OpenAI's.
        metrics_open: whether Prometheus scrapes without a key.
    """
    models, memory = Models(service), ResponseMemory()
    routes = [
        Route("/v1/chat/completions", ChatCompletions(service), methods=["POST"]),
        Route("/v1/completions", Completions(service), methods=["POST"]),
        Route("/v1/messages", Messages(service), methods=["POST"]),
        Route("/v1/messages/count_tokens", MessageCount(service), methods=["POST"]),
        Route("/v1/responses", Responses(service, memory), methods=["POST"]),
        Route("/v1/responses/{name}", OneResponse(service, memory), methods=["GET", "DELETE"]),
        *batches,
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", models, methods=["GET"]),
        Route("/tokenize", Tokenize(service), methods=["POST"]),
        Route("/detokenize", Detokenize(service), methods=["POST"]),
        Route("/health", Health(service), methods=["GET"]),
        Route("/metrics", Scrape(service, metrics, is_open=metrics_open), methods=["GET"]),
        Route("/version", Version(service), methods=["GET"]),
    ]
    routes.append(Route("/openapi.json", OpenApi(service, routes), methods=["GET"]))
    routes += page
    middleware = []
    if cors:
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=cors, allow_methods=["*"], allow_headers=["*"])
        )
    return Starlette(
        routes=routes, middleware=middleware, exception_handlers={HTTPException: _fault_response}
    )


async def _fault_response(request: Request, error: Exception) -> Response:
    """Starlette's own refusals, in the form of our errors."""
    assert isinstance(error, HTTPException)
    code = error.status_code if error.status_code in TYPES else 404
    text = f"{request.method} {request.url.path!r} is not served here"
    fault = Fault(code, text, reason="no such address")
    response = refusal(fault, error_body(fault))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """The methods of an address, which several routes may share."""
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
