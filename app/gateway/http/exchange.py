"""Exchange: one request over HTTP that runs, and what of its replies nobody has read yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.gateway.faults import Fault
from engine.api.client import Submission
from engine.api.lifecycle import FinishReason
from engine.api.stream import Delta, Finish, RequestStream


@dataclass(slots=True, eq=False)
class Exchange:
    """The replies to one request, each of them a submission of its own. The gateway's loop has it.

    Attributes:
        user: who asks.
        submissions, streams: of the replies, in their order.
        arrived_at: monotonic seconds.
        abort: has the engine end a submission.
        began: called when the first of the replies has a token.
        started: whether any reply has one.
        finishes: how each reply ended; None while it runs.
        refusal: what its owner is told in place of the engine's reason for an abort.
    """

    user: str
    submissions: tuple[Submission, ...]
    arrived_at: float
    abort: Callable[[str], None]
    began: Callable[[Exchange], None]
    streams: list[RequestStream] = field(default_factory=list)
    started: bool = False
    finishes: list[Finish | None] = field(default_factory=list)
    refusal: Fault | None = None
    _news: list[tuple[int, Delta]] = field(default_factory=list)
    _waiter: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.finishes = [None] * len(self.submissions)

    @property
    def has_ended(self) -> bool:
        """Whether all replies have."""
        return all(self.finishes)

    async def news(self) -> Sequence[tuple[int, Delta]]:
        """What has come since the last call, by the number of the reply; blocks until something
        has. Nothing once all replies have ended, and where somebody has called `nudge`.
        """
        self.collect()
        if not self._news and not self.has_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, []
        return news

    def collect(self) -> None:
        """Take in what the engine has given, and wake whoever waits for it."""
        for choice, stream in enumerate(self.streams):
            if self.finishes[choice] is None and (delta := stream.drain()) is not None:
                self.finishes[choice] = delta.finish
                if delta.num_tokens and not self.started:
                    self.started = True
                    self.began(self)
                self._news.append((choice, delta))
        if self._news:
            self.nudge()

    def nudge(self) -> None:
        """Have `news` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for news. Others collect for themselves, when they are ready."""
        return self._waiter is not None

    def cancel(self, fault: Fault | None = None) -> None:
        """Have the engine end what runs.

        Args:
            fault: what the owner is told, if there is one.
        """
        self.refusal = self.refusal or fault
        for submission, finish in zip(self.submissions, self.finishes, strict=True):
            if finish is None:
                self.abort(submission.request_id)

    @property
    def fault(self) -> Fault | None:
        """What went wrong with one of the replies, if anything did."""
        for finish in self.finishes:
            if finish is None or finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
                continue
            if finish.error is not None:
                return Fault.of(finish.error)
            return self.refusal or Fault(499, "the operator of the server stopped this request")
        return None
