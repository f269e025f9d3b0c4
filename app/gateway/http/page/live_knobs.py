"""LiveKnobs: /live/knobs, where operators change the knobs."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from app.gateway.control import Control
from app.gateway.faults import Fault
from app.gateway.http.body import read_body
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.page.frame import encoded
from app.gateway.http.page.visitors import Visitors
from app.gateway.http.service import Service
from engine.api.errors import ErrorInfo

# The limit of a message over MQTT: all knobs at once take 2 KiB.
MAX_BYTES = 1 << 16


class LiveKnobs(Endpoint):
    """Executes control messages, one at a time, and answers with the state of the knobs."""

    def __init__(self, service: Service, visitors: Visitors) -> None:
        super().__init__(service)
        self._visitors = visitors
        self._turn = asyncio.Lock()

    async def answer(self, request: Request, send: Send) -> Response:
        user = self._visitors.operator(request)
        body = await read_body(request, _check_size)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            text = "the message cannot be read as JSON; it must be an object"
            raise Fault(400, text) from None
        control = Control(self.service.client, user)
        async with self._turn:
            # On a thread, because this waits until the engine has applied the change.
            answer = await asyncio.to_thread(control.answer, message)
        error = answer.get("error")
        code = Fault.of(ErrorInfo(**error)).code if isinstance(error, dict) else 200
        return Response(encoded(answer), code, media_type="application/json")


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        text = f"the message has {size} bytes; at most {MAX_BYTES} are allowed"
        raise Fault(413, text, reason="too large")
