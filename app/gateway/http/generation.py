"""Generation: an endpoint that generates text, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.body import until_gone
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.exchange import Exchange
from app.gateway.http.protocol.payload import Payload, T, Wanted
from app.gateway.http.replies import PART_BYTES, compact, parts
from app.gateway.http.service import Service
from engine.api.client import Submission
from engine.api.errors import EngineError, InvalidRequestError
from engine.api.stream import Delta

# A stream begins with its first text, so that a refusal has a status of its own; but after this
# time in any case, so that proxies do not time out before the first byte.
PATIENCE_SECONDS = 2.0
_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
# A line that clients skip, and that shows whether they are still connected.
WAITING = b": waiting\n\n"

# Lists the parts of a schema that are not followed, as many as fit into a header.
_LOOSENED = "x-batchdeck-loosened"
_MOST_PLACES = 20
_LONGEST_PLACE = 200
_STRUCTURE = re.compile(r"^structure(?:\.\w+)?")

# Most log-probabilities in the replies to one request, alternatives included. Each takes 75 bytes
# in an answer and twice that in memory. A single reply may have those of its whole context.
MAX_ALTERNATIVES = 1 << 20


class Form(ABC):
    """The client's format of the replies to one request."""

    def opening_events(self, num_prompt_tokens: int) -> Iterable[bytes]:
        """The events before all others.

        Args:
            num_prompt_tokens: of the first prompt; 0 if not known yet.
        """
        return ()

    def waiting(self) -> bytes:
        """The event that shows that the request is still in progress."""
        return WAITING

    @abstractmethod
    def add_delta(self, choice: int, delta: Delta) -> None:
        """Add a delta of a reply."""

    @abstractmethod
    def delta_events(self, choice: int, delta: Delta) -> Iterable[bytes]:
        """The events for a delta that was added."""

    @abstractmethod
    def closing_events(self) -> Iterable[bytes]:
        """The events after the last reply has ended."""

    @abstractmethod
    def failed(self, fault: Fault) -> Iterable[bytes]:
        """The events of an error."""

    @abstractmethod
    def whole(self) -> dict[str, object]:
        """All replies, once they have ended, as `replies.pieces` writes them."""


class Generation(Endpoint, Generic[T]):
    """From a request to replies.

    Attributes:
        kind: the type of request bodies.
    """

    kind: type[T]

    @abstractmethod
    def submissions(self, user: str, asked: T) -> Sequence[Submission]:
        """The engine's submissions, one for each reply.

        Raises:
            Fault, EngineError: the request cannot be served.
        """

    @abstractmethod
    def form(self, asked: T, model: str, submissions: Sequence[Submission]) -> Form: ...

    @abstractmethod
    def streams(self, asked: T) -> bool:
        """Whether replies are streamed."""

    @abstractmethod
    def asked_model(self, asked: T) -> str | None: ...

    async def reply(self, user: str, asked: T) -> dict[str, object]:
        """All replies to a request that did not come over HTTP, in the form of `Form.whole`.

        Raises:
            Fault, EngineError: it is refused, or failed.
        """
        with _naming(asked):
            model = self.service.model(self.asked_model(asked))
            submissions = self.submissions(user, asked)
            _check_alternatives(submissions, self.service)
            form = self.form(asked, model, submissions)
            with self.service.exchanges.run(user, submissions, "batch") as exchange:
                await _read(exchange, form)
        return form.whole()

    async def answer(self, request: Request, send: Send) -> Response | None:
        user, asked = await self.service.read_request(request, self.kind)
        with _naming(asked):
            return await self._answer(request, send, user, asked)

    async def _answer(self, request: Request, send: Send, user: str, asked: T) -> Response | None:
        model = self.service.model(self.asked_model(asked))
        submissions = self.submissions(user, asked)
        _check_alternatives(submissions, self.service)
        self.service.admission.check_room(user, len(submissions))
        form = self.form(asked, model, submissions)
        headers = ignored_headers(asked)
        with self.service.exchanges.run(user, submissions, request.url.path) as exchange:
            gone = asyncio.create_task(until_gone(request))
            gone.add_done_callback(lambda _: exchange.cancel())
            try:
                if self.streams(asked):
                    await _stream(exchange, form, headers, send, asked)
                    return None
                await _read(exchange, form)
                if gone.done():
                    raise ClientDisconnect
                return await send_whole(form.whole(), headers, send, gone)
            finally:
                gone.cancel()


def ignored_headers(asked: Payload) -> dict[str, str]:
    """Headers that list the parts of a request without effect: unknown fields, and parts of its
    schema that are not followed. Empty if every part has an effect.
    """
    return asked.ignored_header | _loosened(asked.form)


def _loosened(wanted: Wanted | None) -> dict[str, str]:
    if wanted is None or not wanted.left_out:
        return {}
    places = (ascii(one)[1:-1] for one in wanted.left_out[:_MOST_PLACES])
    return {_LOOSENED: ", ".join(one[:_LONGEST_PLACE] for one in places)}


@contextmanager
def _naming(asked: Payload) -> Iterator[None]:
    """Make errors name a field as the request does, and not as the engine does.

    Raises:
        Fault: each error of the context.
    """
    try:
        yield
    except EngineError as error:
        raise _named(Fault.of(error.info()), asked) from None
    except Fault as fault:
        raise _named(fault, asked) from None


def _named(fault: Fault, asked: Payload) -> Fault:
    if fault.param == "structure" and (wanted := asked.form) is not None:
        fault.param = wanted.field
        fault.message = _STRUCTURE.sub(lambda _: wanted.field, fault.message, count=1)
    elif (param := fault.param or "") and (own := asked.own_name(param)) != param:
        fault.param, fault.message = own, fault.message.replace(param, own, 1)
    return fault


async def send_whole(
    payload: dict[str, object], headers: dict[str, str], send: Send, gone: asyncio.Future[None]
) -> Response | None:
    """Send a whole answer. Parts of a large one are encoded off the loop.

    Returns:
        the answer; None if it was sent already.

    Raises:
        ClientDisconnect: the client has gone.
    """
    made = parts(payload)
    part: bytes | None = next(made)
    if part is not None and len(part) < PART_BYTES:  # There is no other.
        return Response(part, headers=headers, media_type="application/json")
    await _start_response(send, ((b"content-type", b"application/json"),), headers)
    while part is not None:
        if gone.done():
            raise ClientDisconnect
        await _send(send, (part,))
        part = await asyncio.to_thread(next, made, None)
    await _end_response(send)
    return None


async def _start_response(
    send: Send, kind: Iterable[tuple[bytes, bytes]], headers: dict[str, str]
) -> None:
    own = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": [*kind, *own]})


async def _end_response(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _check_alternatives(submissions: Sequence[Submission], service: Service) -> None:
    """Check that the replies to a request do not have too many log-probabilities together.

    Raises:
        InvalidRequestError: they would have more than `MAX_ALTERNATIVES`.
        Fault: no model is loaded now.
    """
    counts: dict[str, int] = {}
    if len(submissions) == 1 or not any(
        one.sampling.get(name) is not None
        for one in submissions
        for name in ("prompt_logprobs", "logprobs")
    ):
        return
    max_model_len = service.max_model_len
    for one in submissions:
        stated: Mapping[str, Any] = one.sampling
        if (number := stated.get("prompt_logprobs")) is not None:
            length = min(_most_tokens(one), max_model_len)
            counts["prompt_logprobs"] = counts.get("prompt_logprobs", 0) + length * (
                1 + int(number)
            )
        if (number := stated.get("logprobs")) is not None:
            most = stated.get("max_tokens")
            length = max_model_len if most is None else min(int(most), max_model_len)
            counts["logprobs"] = counts.get("logprobs", 0) + length * (1 + int(number))
    if (count := sum(counts.values())) > MAX_ALTERNATIVES:
        name = max(counts, key=counts.__getitem__)
        raise InvalidRequestError(
            f"{name} of {len(submissions)} replies are up to {count} log-probabilities, with those "
            f"of alternatives; at most {MAX_ALTERNATIVES} are allowed: state fewer replies, a "
            "smaller max_tokens or fewer alternatives",
            name,
        )


def _most_tokens(submission: Submission) -> int:
    """Most tokens of a prompt: every token has at least a byte."""
    if submission.prompt is None:
        return 1 << 31  # Only the context limits the text that a template adds to a chat.
    if isinstance(submission.prompt, str):
        return len(submission.prompt.encode(errors="surrogatepass")) + 1
    return len(submission.prompt)


async def _read(exchange: Exchange, form: Form) -> None:
    """Read all replies to their ends.

    Raises:
        Fault: one of them has failed.
    """
    while not exchange.has_ended:
        for choice, delta in await exchange.news():
            form.add_delta(choice, delta)
        if exchange.fault is not None:
            raise exchange.fault


async def _stream(
    exchange: Exchange, form: Form, headers: dict[str, str], send: Send, asked: Payload
) -> None:
    """Stream the replies as they come.

    Raises:
        Fault: a reply was refused before anything was sent.
    """
    patience = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, exchange.nudge)
    news = await exchange.news()
    patience.cancel()
    if exchange.fault is not None:
        raise exchange.fault
    await _start_response(send, _EVENTS, headers)
    await _send(send, form.opening_events(exchange.streams[0].num_prompt_tokens))
    while True:
        await _send(send, _events(form, news) if news else (form.waiting(),))
        if (fault := exchange.fault) is not None:
            await _send(send, form.failed(_named(fault, asked)))
            break
        if exchange.has_ended:
            await _send(send, form.closing_events())
            break
        news = await exchange.news()
    await _end_response(send)


def _events(form: Form, news: Sequence[tuple[int, Delta]]) -> Iterator[bytes]:
    for choice, delta in news:
        form.add_delta(choice, delta)
        yield from form.delta_events(choice, delta)


async def _send(send: Send, events: Iterable[bytes]) -> None:
    """Send events, small ones together. Other tasks run between two large ones."""
    held: list[bytes] = []
    size = 0
    for one in events:
        held.append(one)
        size += len(one)
        if size >= PART_BYTES:
            await send({"type": "http.response.body", "body": b"".join(held), "more_body": True})
            held, size = [], 0
            await asyncio.sleep(0.0)
    if held:
        await send({"type": "http.response.body", "body": b"".join(held), "more_body": True})


def event(data: object, name: str = "") -> bytes:
    """An event with JSON in it, and with a name if it has one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + compact(data).encode() + b"\n\n"
