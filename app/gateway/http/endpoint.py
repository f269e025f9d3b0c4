"""Endpoint: one address of the interface, from a request to the end of its answer."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from app.gateway.faults import Fault
from app.gateway.http.protocol.payload import Payload
from app.gateway.http.service import Service
from engine.api.errors import EngineError

log = logging.getLogger(__name__)

# The status of a fault without an HTTP status: the operator cancelled, not the client.
_STATUS = {499: 503}
# Codes that OpenAI has, and clients know, for reasons that have other words here.
_CODES = {
    "another model": "model_not_found",
    "no key": "invalid_api_key",
    "unknown key": "invalid_api_key",
}
# A wrong key, and another page.
_DENIED = (401, 403)


class Endpoint(ABC):
    """Answers requests to one path. Exceptions become errors that clients know.

    Attributes:
        kind: the type of request bodies; None if requests have no body.
        media_type: the media type of those bodies.
        query: the type of the query string; None if there is none.
        params: fields that have other names here than in other gateways' requests.
    """

    kind: type[Payload] | None = None
    media_type: ClassVar[str] = "application/json"
    query: type[Payload] | None = None
    params: ClassVar[Mapping[str, str]] = {}

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    async def answer(self, request: Request, send: Send) -> Response | None:
        """Answer a request.

        Returns:
            the response; None if it was sent already.

        Raises:
            Fault, EngineError: it is refused.
            ClientDisconnect: the client has gone.
        """

    def error(self, fault: Fault) -> dict[str, object]:
        """The body of an error, in the format of this endpoint's clients."""
        return error_body(fault)

    def status(self, fault: Fault) -> int:
        """The status of an error, as this endpoint's clients know it."""
        return _STATUS.get(fault.code, fault.code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        sent = _Sent(send)
        try:
            response = await self.answer(request, sent)
        except ClientDisconnect:
            return
        except Fault as fault:
            response = self._refuse(request, fault)
        except EngineError as error:
            response = self._refuse(request, Fault.of(error.info()))
        except Exception:
            if sent.has_begun:
                raise  # The response has begun: the server closes the connection.
            log.exception("%s %s could not be handled", request.method, ascii(request.url.path))
            mistake = "the server could not handle this request"
            response = self._refuse(request, Fault(500, mistake, reason="our mistake"))
        if response is not None:
            await response(scope, receive, sent)

    def payload(self, fault: Fault) -> tuple[int, dict[str, object]]:
        """Status and body of an error, which names its field as this endpoint does."""
        fault.param = self.params.get(fault.param or "", fault.param)
        return self.status(fault), self.error(fault)

    def _refuse(self, request: Request, fault: Fault) -> Response:
        self.service.tally.refused(fault, self.service.access.asker(request.headers))
        if fault.code in _DENIED and request.client is not None:
            self.service.tally.denied(fault, request.client.host)
        status, body = self.payload(fault)
        response = refusal(fault, body)
        response.status_code = status
        return response


class _Sent:
    """A `send` that records whether an answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def error_body(fault: Fault) -> dict[str, object]:
    """An error in the shape that OpenAI's clients know. The code is OpenAI's if it has one, or the
    fault's in few words.
    """
    return {
        "error": {
            "message": fault.message,
            "type": fault.type,
            "param": fault.param,
            "code": _CODES.get(fault.reason, fault.reason.replace(" ", "_")),
        }
    }


def refusal(fault: Fault, body: Mapping[str, object]) -> Response:
    """The response to a request that is refused or fails."""
    headers = {}
    if fault.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, math.ceil(fault.retry_after_ms / 1000)))
    if fault.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if fault.code in (408, 413):
        headers["Connection"] = "close"  # The rest of the body is not read.
    return JSONResponse(body, _STATUS.get(fault.code, fault.code), headers)
