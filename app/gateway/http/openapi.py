"""OpenApi: the served routes as an OpenAPI document for clients and tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Send

from app.gateway.http.connection import HEAD_BYTES
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.messages import AnthropicEndpoint
from app.gateway.http.protocol.payload import Payload
from app.gateway.http.service import Service
from app.system.versions import version

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
    },
    "required": ["type", "error"],
}
# In a path, which is part of a head.
_NAME = {"type": "string", "maxLength": HEAD_BYTES}
# Error codes that every route may return.
_REFUSALS = (400, 401, 403, 404, 408, 409, 413, 429, 500, 503)


class OpenApi(Endpoint):
    """The document, at /openapi.json. No key is needed for it.

    Args:
        routes: the routes to describe.
    """

    def __init__(self, service: Service, routes: Sequence[Route]) -> None:
        super().__init__(service)
        self._document = document(routes)

    async def answer(self, request: Request, send: Send) -> Response:
        return JSONResponse(self._document)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """An OpenAPI document of endpoints."""
    by_name = sorted({*filter(None, map(_kind, routes))}, key=lambda kind: kind.__name__)
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in by_name], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path.replace(":path", ""), {}).update(_operations(route))
    return {
        "openapi": "3.1.0",
        "info": {"title": "batchdeck", "version": version("batchdeck") or "0"},
        "paths": paths,
        "components": {
            "schemas": {
                **schemas.get("$defs", {}),
                "Error": _ERROR,
                "AnthropicError": _ANTHROPIC_ERROR,
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _kind(route: Route) -> type[Payload] | None:
    """The type of a route's request bodies."""
    return route.endpoint.kind if isinstance(route.endpoint, Endpoint) else None


def _operations(route: Route) -> dict[str, Any]:
    """The operations of a route, by lower-case methods."""
    summary = (type(route.endpoint).__doc__ or "").strip().partition("\n")[0]
    is_anthropic = isinstance(route.endpoint, AnthropicEndpoint)
    error = "AnthropicError" if is_anthropic else "Error"
    refused = {"$ref": f"#/components/schemas/{error}"}
    codes = (*_REFUSALS, 529) if is_anthropic else _REFUSALS
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "what was asked"},
            **{
                str(code): {
                    "description": "a refusal or a failure",
                    "content": {"application/json": {"schema": refused}},
                }
                for code in codes
            },
        },
    }
    if (kind := _kind(route)) is not None:
        assert isinstance(route.endpoint, Endpoint)
        schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
        operation["requestBody"] = {
            "required": True,
            "content": {route.endpoint.media_type: {"schema": schema}},
        }
    if parameters := [*_parameters(route)]:
        operation["parameters"] = parameters
    methods = sorted((route.methods or {"GET"}) - {"HEAD"})
    return {method.lower(): operation for method in methods}


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    """The parameters of a route, in its path and in the query string."""
    if "{name" in route.path:
        yield {"name": "name", "in": "path", "required": True, "schema": _NAME}
    query = route.endpoint.query if isinstance(route.endpoint, Endpoint) else None
    if query is not None:
        for name, schema in query.model_json_schema()["properties"].items():
            yield {"name": name, "in": "query", "required": False, "schema": schema}
