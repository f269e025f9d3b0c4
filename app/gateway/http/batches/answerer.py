"""Answerer: answers the requests of batches, each as its endpoint would, at the lowest priority."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from app.gateway.admission import Admission, Standing
from app.gateway.faults import Fault
from app.gateway.http.access import Access, Pages
from app.gateway.http.chat_completions import ChatCompletions
from app.gateway.http.completions import Completions
from app.gateway.http.endpoint import error_body
from app.gateway.http.exchanges import Exchanges
from app.gateway.http.generation import Generation, ignored_headers
from app.gateway.http.protocol.batches import BatchLine, custom_id_of
from app.gateway.http.protocol.payload import read
from app.gateway.http.replies import pieces
from app.gateway.http.response_memory import ResponseMemory
from app.gateway.http.responses import Responses
from app.gateway.http.service import Service
from app.gateway.quotas import Quota, Quotas
from app.gateway.tally import Tally
from engine.api.client import EngineClient, new_request_id
from engine.api.errors import EngineError
from engine.core.admission import MAX_PRIORITY

log = logging.getLogger(__name__)

_NO_LIMIT = 1 << 40
_RESPONSES = "/v1/responses"


class Answered(NamedTuple):
    """The answer to a request.

    Attributes:
        line: the answer as one line of JSON, without a newline.
        usage: the token counts as the endpoint reports them; empty if the request failed.
        fault: why it failed; None if it succeeded.
    """

    line: str
    usage: Mapping[str, Any]
    fault: Fault | None


class Answerer:
    """Has the engine answer batch requests separately from all others: they count toward no quota
    and in no queue of the gateway. It is used on one event loop.

    Args:
        loop: that event loop.
        names: further names for the loaded model; `*` is any.
        sampling: for fields that a request leaves open, over the model's defaults.

    Attributes:
        exchanges: the requests in flight.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        loop: asyncio.AbstractEventLoop,
        names: Collection[str],
        sampling: Mapping[str, object],
        separate_caches: bool = False,
    ) -> None:
        tally = Tally(time.monotonic)
        quota = Quota(requests=_NO_LIMIT, max_priority=-MAX_PRIORITY)
        quotas = Quotas(quota, {}, tally.pace, time.monotonic)
        access = Access({})
        self.exchanges = Exchanges(
            client=client,
            quotas=quotas,
            tally=tally,
            loop=loop,
            clock=time.monotonic,
            ended=lambda _: None,
        )
        self._service = Service(
            client=client,
            access=access,
            pages=Pages(access, ()),
            admission=Admission(
                client,
                max_request_bytes=_NO_LIMIT,
                max_requests=_NO_LIMIT,
                quotas=quotas,
                standing=lambda: Standing(False, _NO_LIMIT, 0, 0),
            ),
            quotas=quotas,
            exchanges=self.exchanges,
            tally=tally,
            names=frozenset(names),
            sampling=sampling,
            separate_caches=separate_caches,
        )
        self._endpoints: dict[str, Generation[Any]] = {
            "/v1/chat/completions": ChatCompletions(self._service),
            "/v1/completions": Completions(self._service),
            _RESPONSES: Responses(self._service, ResponseMemory()),
        }

    def check_model(self, asked: str | None) -> None:
        """Check that a model is served.

        Raises:
            Fault: 404, it is not; 503, no model is loaded now.
        """
        self._service.model(asked)

    async def answer(self, user: str, line: bytes) -> Answered:
        """Answer one request of a user.

        Args:
            line: a `BatchLine`; the answer to anything else is an error.
        """
        try:
            asked = read(BatchLine, line)
        except Fault as unread:
            return await _answered(line, unread.code, error_body(unread), unread)
        endpoint = self._endpoints[asked.url]
        try:
            request = read(endpoint.kind, _body(asked))
            body = await endpoint.reply(user, request)
        except Fault as error:
            fault = error
        except EngineError as error:
            fault = Fault.of(error.info())
        except Exception:
            log.exception("a request of a batch could not be handled")
            fault = Fault(500, "the server could not handle this request", reason="our mistake")
        else:
            return await _answered(line, 200, body, None, ignored_headers(request))
        return await _answered(line, *endpoint.payload(fault), fault)


def _body(asked: BatchLine) -> bytes:
    # Responses of a batch are not stored, because no client continues them: they would evict those
    # that clients do continue.
    unstored = {"store": False} if asked.url == _RESPONSES else {}
    return json.dumps(asked.body | unstored).encode()


async def _answered(
    line: bytes,
    status: int,
    body: Mapping[str, Any],
    fault: Fault | None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Answered:
    request_id = new_request_id()
    response = {"status_code": status, "request_id": request_id, "body": body}
    payload = {
        "id": f"batch_req_{request_id}",
        "custom_id": custom_id_of(line),
        "response": response | ({"headers": headers} if headers else {}),
        "error": None,
    }
    usage = {} if fault is not None else body["usage"]
    # Many log-probabilities are megabytes, so they are encoded off the loop.
    return Answered(await asyncio.to_thread("".join, pieces(payload)), usage, fault)
