"""Exchange: one running request over HTTP, with the unread output of its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.gateway.exchange import as_messages, fault_of, next_version, transcript_of
from app.gateway.faults import Fault
from app.gateway.view import Transcript
from app.store.conversation import Conversation, Message
from engine.api.client import Submission
from engine.api.stream import Delta, Finish, RequestStream


@dataclass(slots=True, eq=False)
class Exchange:
    """The replies to one request, each a submission of its own. It belongs to the gateway's loop.

    Attributes:
        user: the caller.
        submissions, streams: one for each reply, in order.
        arrived_at: monotonic seconds.
        abort: aborts a submission in the engine.
        began: called when the first of the replies has a token.
        started: whether any reply has one.
        finishes: how each reply ended; None while it runs.
        refusal: the error that the caller gets in place of the engine's abort.
        left: whether the caller went away before the end.
        texts, thoughts: the pieces of each reply's text and thinking that were read.
        version: grows with every change.
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
    left: bool = False
    texts: list[list[str]] = field(default_factory=list)
    thoughts: list[list[str]] = field(default_factory=list)
    version: int = field(default_factory=next_version)
    _news: list[tuple[int, Delta]] = field(default_factory=list)
    _waiter: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.finishes = [None] * len(self.submissions)
        self.texts = [[] for _ in self.submissions]
        self.thoughts = [[] for _ in self.submissions]

    @property
    def has_ended(self) -> bool:
        """Whether all replies have ended."""
        return all(self.finishes)

    async def news(self) -> Sequence[tuple[int, Delta]]:
        """Return the deltas since the last call, with the index of each one's reply; waits until
        there are any. Returns none once all replies have ended, or after a call of `nudge`.
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
        """Drain the streams, and wake the waiter."""
        for choice, stream in enumerate(self.streams):
            if self.finishes[choice] is None and (delta := stream.drain()) is not None:
                self.texts[choice].append(delta.text)
                self.thoughts[choice].append(delta.thinking)
                self.finishes[choice] = delta.finish
                self.version = next_version()
                if delta.num_tokens and not self.started:
                    self.started = True
                    self.began(self)
                self._news.append((choice, delta))
        if self._news:
            self.nudge()

    def nudge(self) -> None:
        """Make `news` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits in `news`. If none does, the next call of `news` collects the output
        itself."""
        return self._waiter is not None

    def cancel(self, fault: Fault | None = None) -> None:
        """Abort the unfinished replies in the engine.

        Args:
            fault: the caller's error; None if the caller has gone.
        """
        self.refusal = self.refusal or fault
        self.left = self.left or (self.refusal is None and not self.has_ended)
        for submission, finish in zip(self.submissions, self.finishes, strict=True):
            if finish is None:
                self.abort(submission.request_id)

    @property
    def fault(self) -> Fault | None:
        """The error of one of the replies, if there is any."""
        faults = (fault_of(finish, self.refusal) for finish in self.finishes)
        return next(filter(None, faults), None)

    def transcript(self, choice: int) -> Transcript:
        """One of the replies with its prompt, in their current state. May be called from any
        thread."""
        submission, finish = self.submissions[choice], self.finishes[choice]
        origin, request_id = submission.origin, submission.request_id
        held = Conversation(
            id=origin.conversation, user=origin.user, source=origin.source, title=origin.title
        )
        before, written = submission.messages, ""
        if submission.num_partial is not None and not submission.repeats_partial:
            before, written = before[:-1], before[-1].content
        messages = [*as_messages(before, held, request_id)]
        if isinstance(submission.prompt, str):
            messages.append(
                Message(
                    id=f"{request_id}/prompt",
                    conversation_id=held.id,
                    parent_id=None,
                    role="user",
                    content=submission.prompt,
                    created=held.created,
                )
            )
        messages.append(
            Message(
                id=request_id,
                conversation_id=held.id,
                parent_id=None,
                role="assistant",
                content=written + "".join(self.texts[choice]),
                thinking="".join(self.thoughts[choice]),
                tool_use=None if finish is None else finish.tool_use,
                created=held.created,
                request_id=request_id,
                finish_reason=None if finish is None else finish.reason,
                error=None if finish is None else finish.error,
                usage=None if finish is None else finish.usage,
                timings=None if finish is None else finish.timings,
            )
        )
        running = request_id if finish is None else None
        stream = self.streams[choice] if self.streams else None
        return transcript_of(held, messages, self.version, running, stream)
