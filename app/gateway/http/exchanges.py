"""Exchanges: the running requests over HTTP, woken when the engine has output for them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app.gateway.exchange import ENDED_KEPT, Waker, log_end
from app.gateway.faults import Fault
from app.gateway.http.exchange import Exchange
from app.gateway.quotas import Quotas
from app.gateway.tally import Tally
from app.gateway.view import Transcript
from engine.api.client import EngineClient, Submission


class Exchanges:
    """The running requests. `wake` and `transcript` may be called from any thread, all else on the
    gateway's loop.

    The engine wakes the loop at most once a step. The loop then polls only requests whose clients
    have read everything so far: output for a slow reader stays in its stream as one piece, and
    costs other requests nothing.

    Args:
        clock: monotonic seconds.
        ended: called with each request when it is over, inside its handler.

    Attributes:
        num_waiting: how many of them have no first token.
        num_replies: how many replies they request in all.
    """

    def __init__(
        self,
        *,
        client: EngineClient,
        quotas: Quotas,
        tally: Tally,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        ended: Callable[[Exchange], None],
    ) -> None:
        self._client = client
        self._quotas = quotas
        self._tally = tally
        self._clock = clock
        self._ended = ended
        self._open: dict[Exchange, None] = {}
        # By the engine's ids, oldest first: all running requests, and the last ones that ended.
        self._kept: dict[str, tuple[Exchange, int]] = {}
        self.wake = Waker(loop, self._poll).wake
        self.num_waiting = 0
        self.num_replies = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(tuple(self._open))

    @contextmanager
    def run(
        self, user: str, submissions: Sequence[Submission], endpoint: str
    ) -> Iterator[Exchange]:
        """Submit a request to the engine. Leaving the context aborts unfinished replies.

        Args:
            endpoint: where the request came in, for the log.
        """
        exchange = Exchange(
            user, tuple(submissions), self._clock(), self._client.abort, self._began
        )
        self._open[exchange] = None
        self.num_waiting += 1
        self.num_replies += len(submissions)
        self._tally.accepted += 1
        for _ in submissions:
            self._quotas.opened(user)
        try:
            self._retain(exchange)
            exchange.streams = [self._client.submit(one, self.wake) for one in submissions]
            yield exchange
        finally:
            exchange.cancel()
            self._open.pop(exchange)
            self.num_waiting -= not exchange.started
            self.num_replies -= len(submissions)
            for _ in submissions:
                self._quotas.ended(user)
            self._tally.ended()
            for finish in filter(None, exchange.finishes):
                self._tally.count_reply(user, finish.usage)
            model = self._client.status().model
            left = exchange.left and bool(exchange.streams)  # else the engine refused it
            ids = (one.request_id for one in submissions)
            for one in itertools.zip_longest(ids, exchange.streams, exchange.finishes):
                log_end(user, endpoint, model, *one, exchange.fault, left=left)
            if not exchange.started:
                # Such a request may be very large, and has no output to show, so it is not kept.
                for submission in submissions:
                    self._kept.pop(submission.request_id, None)
            self._ended(exchange)

    def cancel_all(self, fault: Fault) -> None:
        """Abort all requests in the engine; `fault` is their callers' error."""
        for exchange in self:
            exchange.cancel(fault)

    def nudge_all(self) -> None:
        """Wake the waiting requests, so that they send a keep-alive."""
        for exchange in self:
            exchange.nudge()

    def transcript(self, request_id: str) -> Transcript | None:
        """The chat of a running or recently ended request, by the engine's id."""
        found = self._kept.get(request_id)
        return None if found is None else found[0].transcript(found[1])

    def _retain(self, exchange: Exchange) -> None:
        """Keep a request available for `transcript`."""
        for choice, submission in enumerate(exchange.submissions):
            self._kept[submission.request_id] = exchange, choice
        for request_id in tuple(self._kept):
            if len(self._kept) <= self.num_replies + ENDED_KEPT:
                break
            if self._kept[request_id][0] not in self._open:
                del self._kept[request_id]

    def _poll(self) -> None:
        # Newest first: a request that waits for its first token waits for no other stream's event.
        for exchange in reversed(self._open):
            if exchange.is_awaited:
                exchange.collect()

    def _began(self, exchange: Exchange) -> None:
        self.num_waiting -= 1
        self._tally.first_token(self._clock() - exchange.arrived_at)
