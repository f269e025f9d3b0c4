"""Exchanges: the requests over HTTP that run, woken when the engine has news of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app.gateway.faults import Fault
from app.gateway.http.exchange import Exchange
from app.gateway.quotas import Quotas
from app.gateway.tally import Tally
from app.gateway.view import Transcript
from engine.api.client import EngineClient, Submission

log = logging.getLogger(__name__)

ENDED_KEPT = 64


class Exchanges:
    """The requests that run. `wake` and `transcript` may be called from any thread, all else on the
    gateway's loop.

    The engine wakes the loop at most once a step. Only those are looked at then whose clients have
    taken all that there was: what a slow reader has not taken stays in its stream as one piece, and
    costs nobody else anything.

    Args:
        clock: monotonic seconds.
        ended: told of each request when it is over, within what handled it.

    Attributes:
        num_waiting: how many of those that run have no first token.
        num_replies: how many replies all of them ask for.
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
        self._loop = loop
        self._clock = clock
        self._ended = ended
        self._open: dict[Exchange, None] = {}
        # By the engine's ids, the oldest first: all that run, and the last that have ended.
        self._kept: dict[str, tuple[Exchange, int]] = {}
        self._woken = False
        self.num_waiting = 0
        self.num_replies = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(tuple(self._open))

    @contextmanager
    def run(self, user: str, submissions: Sequence[Submission]) -> Iterator[Exchange]:
        """Have the engine answer a request. What has not ended with the context is aborted."""
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
            self._keep(exchange)
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
            if not exchange.started:
                # It may be as long as requests may be, and there is nothing to see of it.
                for submission in submissions:
                    self._kept.pop(submission.request_id, None)
            self._ended(exchange)

    def wake(self) -> None:
        """Have the loop look for news of the engine. May be called from any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._poll)
            except RuntimeError:
                log.debug("the loop has closed before the engine ended")

    def cancel_all(self, fault: Fault) -> None:
        """Have the engine end all that runs; `fault` is what their owners are told."""
        for exchange in self:
            exchange.cancel(fault)

    def nudge_all(self) -> None:
        """Let those that wait for news say that they still do."""
        for exchange in self:
            exchange.nudge()

    def transcript(self, request_id: str) -> Transcript | None:
        """The chat of a request that runs or has ended lately, by the engine's id."""
        found = self._kept.get(request_id)
        return None if found is None else found[0].transcript(found[1])

    def _keep(self, exchange: Exchange) -> None:
        """Keep a request at hand for whoever watches."""
        for choice, submission in enumerate(exchange.submissions):
            self._kept[submission.request_id] = exchange, choice
        for request_id in tuple(self._kept):
            if len(self._kept) <= self.num_replies + ENDED_KEPT:
                break
            if self._kept[request_id][0] not in self._open:
                del self._kept[request_id]

    def _poll(self) -> None:
        self._woken = False
        # The newest first: who waits for a first token waits for no other stream's event.
        for exchange in reversed(self._open):
            if exchange.is_awaited:
                exchange.collect()

    def _began(self, exchange: Exchange) -> None:
        self.num_waiting -= 1
        self._tally.first_token(self._clock() - exchange.arrived_at)
