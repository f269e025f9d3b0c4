"""Generation: an endpoint that has the engine write text, whole or as a stream of events."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.body import until_gone
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.exchange import Exchange
from app.gateway.http.protocol.told import T
from app.gateway.http.replies import compact
from engine.api.client import Submission
from engine.api.stream import Delta

# A stream begins with its first text, so that a refusal has a status of its own; but after so long
# in any case, so that whoever stands between is not made to wait for the first byte.
PATIENCE_SECONDS = 2.0
_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
# A line that clients skip, and that shows whether they are still there.
WAITING = b": waiting\n\n"


class Form(ABC):
    """How replies are told to a client, of one request."""

    def begin(self, num_prompt_tokens: int) -> Iterable[bytes]:
        """The events before all news.

        Args:
            num_prompt_tokens: of the first prompt; 0 if that is not known yet.
        """
        return ()

    def waiting(self) -> bytes:
        """What shows that there is no news yet."""
        return WAITING

    @abstractmethod
    def take(self, choice: int, delta: Delta) -> None:
        """Take in news of a reply."""

    @abstractmethod
    def tell(self, choice: int, delta: Delta) -> Iterable[bytes]:
        """The events that tell news that were taken in."""

    @abstractmethod
    def end(self) -> Iterable[bytes]:
        """The events after the last reply has ended."""

    @abstractmethod
    def failed(self, fault: Fault) -> Iterable[bytes]:
        """The events that tell what went wrong."""

    @abstractmethod
    def whole(self) -> dict[str, object]:
        """All of the replies, once they have ended."""


class Generation(Endpoint, Generic[T]):
    """From a request to replies.

    Attributes:
        kind: what is asked here.
    """

    kind: type[T]

    @abstractmethod
    def submissions(self, user: str, asked: T) -> Sequence[Submission]:
        """What the engine is asked, for each reply.

        Raises:
            Fault, EngineError: the request cannot be served.
        """

    @abstractmethod
    def form(self, asked: T, model: str, submissions: Sequence[Submission]) -> Form: ...

    @abstractmethod
    def streams(self, asked: T) -> bool:
        """Whether replies are told as they come."""

    @abstractmethod
    def asked_model(self, asked: T) -> str | None: ...

    async def reply(self, user: str, asked: T) -> dict[str, object]:
        """All of the replies to a request that came otherwise than over HTTP.

        Raises:
            Fault, EngineError: it is refused, or failed.
        """
        model = self.service.model(self.asked_model(asked))
        submissions = self.submissions(user, asked)
        form = self.form(asked, model, submissions)
        with self.service.exchanges.run(user, submissions) as exchange:
            await _read(exchange, form)
        return form.whole()

    async def answer(self, request: Request, send: Send) -> Response | None:
        user, asked = await self.service.take(request, self.kind)
        model = self.service.model(self.asked_model(asked))
        submissions = self.submissions(user, asked)
        self.service.admission.check_room(user, len(submissions))
        form = self.form(asked, model, submissions)
        headers = asked.ignored_header
        with self.service.exchanges.run(user, submissions) as exchange:
            gone = asyncio.create_task(until_gone(request))
            gone.add_done_callback(lambda _: exchange.cancel())
            try:
                if self.streams(asked):
                    await _stream(exchange, form, headers, send)
                    return None
                await _read(exchange, form)
            finally:
                gone.cancel()
            if gone.done() and not gone.cancelled():
                raise ClientDisconnect
        return JSONResponse(form.whole(), headers=headers)


async def _read(exchange: Exchange, form: Form) -> None:
    """Read all replies to their ends.

    Raises:
        Fault: one of them has failed.
    """
    while not exchange.has_ended:
        for choice, delta in await exchange.news():
            form.take(choice, delta)
        if exchange.fault is not None:
            raise exchange.fault


async def _stream(exchange: Exchange, form: Form, headers: dict[str, str], send: Send) -> None:
    """Tell replies as they come.

    Raises:
        Fault: a reply was refused before anything was sent.
    """
    patience = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, exchange.nudge)
    news = await exchange.news()
    patience.cancel()
    if exchange.fault is not None:
        raise exchange.fault
    own = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *own]})
    await _send(send, form.begin(exchange.streams[0].num_prompt_tokens))
    while True:
        await _send(send, _told(form, news) if news else (form.waiting(),))
        if (fault := exchange.fault) is not None:
            await _send(send, form.failed(fault))
            break
        if exchange.has_ended:
            await _send(send, form.end())
            break
        news = await exchange.news()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _told(form: Form, news: Sequence[tuple[int, Delta]]) -> Iterator[bytes]:
    for choice, delta in news:
        form.take(choice, delta)
        yield from form.tell(choice, delta)


async def _send(send: Send, events: Iterable[bytes]) -> None:
    if body := b"".join(events):
        await send({"type": "http.response.body", "body": body, "more_body": True})


def event(data: object, name: str = "") -> bytes:
    """An event with JSON in it, of a name if it has one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + compact(data).encode() + b"\n\n"
