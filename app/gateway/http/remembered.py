"""Remembered: /v1/responses/{id}, which fetches or deletes a stored response."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.response_memory import ResponseMemory
from app.gateway.http.service import Service


class Remembered(Endpoint):
    """GET returns a response of the caller, DELETE forgets it."""

    def __init__(self, service: Service, memory: ResponseMemory) -> None:
        super().__init__(service)
        self._memory = memory

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        name = request.path_params["name"]
        response = self._memory.get(user, name)
        if response is None:
            text = f"{name!r} is none of your last responses that were stored"
            raise Fault(404, text, reason="response not found")
        if request.method != "DELETE":
            return JSONResponse(response.payload)
        self._memory.forget(user, name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})
