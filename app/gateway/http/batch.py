"""Batch: requests of a file, answered in the form of OpenAI's batches, without a server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

from app.gateway.admission import Admission, Standing
from app.gateway.faults import Fault
from app.gateway.http.access import Access
from app.gateway.http.chat_completions import ChatCompletions
from app.gateway.http.completions import Completions
from app.gateway.http.endpoint import error_body
from app.gateway.http.exchanges import Exchanges
from app.gateway.http.generation import Generation
from app.gateway.http.pages import Pages
from app.gateway.http.protocol.told import Told, read
from app.gateway.http.service import Service
from app.gateway.quotas import Quota, Quotas
from app.gateway.tally import Tally
from engine.api.client import EngineClient, new_request_id
from engine.api.errors import EngineError
from engine.core.admission import MAX_PRIORITY

# The user of a batch. Whatever else is asked goes first.
USER = "batch"
_NO_LIMIT = 1 << 40


class BatchLine(Told):
    """One request of a file.

    Attributes:
        custom_id: by which its answer is told from others.
        url: of the endpoint that it is for.
        body: what would be sent there.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        "custom_id": "text",
        "method": "POST",
        "url": "/v1/chat/completions or /v1/completions",
        "body": "an object, the request",
    }

    custom_id: str
    method: Literal["POST"] = "POST"
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any]


class Batch:
    """Answers requests, so many at once, at the lowest priority. It is used on one event loop.

    Args:
        sampling: for what a request leaves open, over the model's defaults.
        at_once: most requests that the engine has at a time.
    """

    def __init__(
        self, client: EngineClient, *, sampling: Mapping[str, object], at_once: int
    ) -> None:
        tally = Tally(time.monotonic)
        quota = Quota(requests=_NO_LIMIT, max_priority=-MAX_PRIORITY)
        quotas = Quotas(quota, {}, tally.pace, time.monotonic)
        access = Access({})
        service = Service(
            client=client,
            access=access,
            pages=Pages(access, ""),
            admission=Admission(
                client,
                max_request_bytes=_NO_LIMIT,
                max_requests=_NO_LIMIT,
                quotas=quotas,
                standing=lambda: Standing(False, _NO_LIMIT, 0, 0),
            ),
            quotas=quotas,
            exchanges=Exchanges(
                client=client,
                quotas=quotas,
                tally=tally,
                loop=asyncio.get_running_loop(),
                clock=time.monotonic,
                ended=lambda _: None,
            ),
            tally=tally,
            names=frozenset("*"),
            sampling=sampling,
        )
        self._endpoints: dict[str, Generation[Any]] = {
            "/v1/chat/completions": ChatCompletions(service),
            "/v1/completions": Completions(service),
        }
        self._at_once = at_once

    async def run(self, lines: Iterable[bytes], tell: Callable[[str, bool], None]) -> None:
        """Answer the requests of lines.

        Args:
            tell: called with each answer, a line of JSON, and whether it went well, in the order in
                which they end.
        """
        room = asyncio.Semaphore(self._at_once)

        async def one(line: bytes) -> None:
            try:
                tell(*await self.answer(line))
            finally:
                room.release()

        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                await room.acquire()
                tasks.create_task(one(line))

    async def answer(self, line: bytes) -> tuple[str, bool]:
        """The answer to one request, and whether it went well."""
        request_id, fault = new_request_id(), None
        body: dict[str, object] = {}
        try:
            asked = read(BatchLine, line)
            endpoint = self._endpoints[asked.url]
            body = await endpoint.reply(USER, read(endpoint.kind, json.dumps(asked.body).encode()))
        except Fault as error:
            fault = error
        except EngineError as error:
            fault = Fault.of(error.info())
        told = {
            "id": f"batch_req_{request_id}",
            "custom_id": custom_id_of(line),
            "response": {
                "status_code": 200 if fault is None else fault.code,
                "request_id": request_id,
                "body": body if fault is None else error_body(fault),
            },
            "error": None,
        }
        return json.dumps(told, ensure_ascii=False), fault is None


def custom_id_of(line: bytes) -> str | None:
    """The id of a request or of its answer; None if it has none."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = told.get("custom_id") if isinstance(told, dict) else None
    return name if isinstance(name, str) else None
