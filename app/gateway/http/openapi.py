"""OpenApi: what is served, as an OpenAPI document for clients and tools that read one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Send

from app.gateway.http.endpoint import Endpoint
from app.gateway.http.generation import Generation
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
# What may be answered instead, to whatever is asked.
_REFUSALS = (400, 401, 404, 408, 413, 429, 500, 503)


class OpenApi(Endpoint):
    """The document, at /openapi.json. No key is needed for it.

    Args:
        routes: whose endpoints it tells.
    """

    def __init__(self, service: Service, routes: Sequence[Route]) -> None:
        super().__init__(service)
        self._document = document(routes)

    async def answer(self, request: Request, send: Send) -> Response:
        return JSONResponse(self._document)


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """An OpenAPI document of endpoints."""
    kinds = {route.endpoint.kind for route in routes if isinstance(route.endpoint, Generation)}
    by_name = sorted(kinds, key=lambda kind: kind.__name__)
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in by_name], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "batchdeck", "version": version("batchdeck") or "0"},
        "paths": {route.path.replace(":path", ""): _operations(route) for route in routes},
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operations(route: Route) -> dict[str, Any]:
    told = (type(route.endpoint).__doc__ or "").strip().partition("\n")[0]
    refused = {"$ref": "#/components/schemas/Error"}
    operation: dict[str, Any] = {
        "summary": told,
        "responses": {
            "200": {"description": "what was asked"},
            **{
                str(code): {
                    "description": "a refusal or a failure",
                    "content": {"application/json": {"schema": refused}},
                }
                for code in _REFUSALS
            },
        },
    }
    if isinstance(route.endpoint, Generation):
        schema = {"$ref": f"#/components/schemas/{route.endpoint.kind.__name__}"}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    if "{name" in route.path:
        operation["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    methods = sorted((route.methods or {"GET"}) - {"HEAD"})
    return {method.lower(): operation for method in methods}
