"""Exchange: one accepted request, from its journal entry to its ending."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.conversations.history import History
from app.gateway.exchange import as_messages, fault_of, next_version, transcript_of
from app.gateway.faults import Fault
from app.gateway.logprobs import prompt_logprobs, token_bytes
from app.gateway.mqtt.protocol.replies import (
    Accepted,
    Choice,
    DeltaReply,
    DeltaText,
    ErrorBody,
    ErrorReply,
    Final,
    ReplyCall,
    ReplyLogprobs,
    ReplyTimings,
    ReplyUsage,
    parse_reply,
)
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import Caller, user_of
from app.gateway.mqtt.transport.link import Outgoing
from app.gateway.sources import MQTT, salt_of
from app.gateway.view import Transcript
from app.store.conversation import Conversation, Message
from app.store.journal import JournalEntry
from engine.api.client import ChatMessage, Submission
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason
from engine.api.logprobs import OutputToken, PromptToken
from engine.api.origin import Origin
from engine.api.stream import Context, Finish, RequestStream
from engine.api.tools import ToolUse

# Most log-probabilities of a request, each alternative one of them. A final has all of them in one
# payload: of 75 bytes each they are 2.5 MB.
MAX_ALTERNATIVES = 1 << 15


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """The destination of the replies to a request.

    Attributes:
        correlation: CorrelationData of MQTT 5, sent with each reply; None without it.
    """

    topic: str
    correlation: bytes | None = None

    def dump(self) -> str:
        """The text form for the journal."""
        data = self.correlation
        return json.dumps([self.topic, None if data is None else base64.b64encode(data).decode()])

    @staticmethod
    def load(text: str) -> ReplyTo:
        topic, data = json.loads(text)
        return ReplyTo(topic, None if data is None else base64.b64decode(data))

    def message(self, payload: bytes, qos: int = 1) -> Outgoing:
        return Outgoing(
            self.topic, payload, qos, correlation=self.correlation, flow=user_of(self.topic)
        )


@dataclass(slots=True, eq=False)
class Exchange:
    """A running request, with the state of its replies.

    Attributes:
        digest: identifies the request's body (`ChatRequest.digest`).
        reply_to: the destination of its replies.
        attempt: which run of the same request this is.
        priority: its effective priority, after the user's quota.
        history: the conversation's messages; only in memory if the request has no session.
        reply: the message that the model is writing.
        messages, context: the model's prompt, and the token ids of its known beginning.
        published_at: when the client sent it, or else when it arrived, in monotonic seconds.
        stream: the engine's stream; None until the engine has the request.
        seq: the number of the next delta.
        unsent, unsent_thinking, unsent_logprobs: text, thinking, and log-probabilities that were
            not sent yet.
        logprobs, prompt_logprobs: of the tokens so far, if the request wants them.
        delta_sent_at: when the last delta was sent, in monotonic seconds; None before the first.
        started: whether it has its first token.
        refusal: the error that the client gets in place of the engine's abort.
        finish: how it ended; None while it runs.
        version: grows with every change.
    """

    caller: Caller
    request: ChatRequest
    digest: str
    reply_to: ReplyTo
    attempt: int
    priority: int
    history: History
    reply: Message
    messages: tuple[ChatMessage, ...]
    context: Context | None
    published_at: float
    stream: RequestStream | None = None
    seq: int = 0
    unsent: list[str] = field(default_factory=list)
    unsent_thinking: list[str] = field(default_factory=list)
    unsent_logprobs: list[OutputToken] = field(default_factory=list)
    logprobs: list[OutputToken] = field(default_factory=list)
    prompt_logprobs: list[PromptToken] = field(default_factory=list)
    delta_sent_at: float | None = None
    started: bool = False
    refusal: Fault | None = None
    finish: Finish | None = None
    version: int = field(default_factory=next_version)

    @property
    def key(self) -> str:
        return self.caller.key

    @property
    def engine_id(self) -> str:
        """The engine's request id for this attempt."""
        return self.key if self.attempt == 1 else f"{self.key}#{self.attempt}"

    @property
    def conversation(self) -> Conversation:
        return self.history.conversation

    @property
    def is_session(self) -> bool:
        """Whether the conversation is stored."""
        return self.request.session_id is not None

    def submission(
        self, sampling: Mapping[str, object], deadline_ms: int, *, separate_caches: bool
    ) -> Submission:
        """The submission to the engine.

        Args:
            sampling: defaults for parameters that the request does not state.
            deadline_ms: how long it may wait for the batch, by default.
            separate_caches: whether other users cannot find its prefix in the cache.
        """
        user, stated = self.caller.user, self.request.cache_salt
        return Submission(
            messages=self.messages,
            context=self.context,
            sampling={**sampling, **self.request.sampling()},
            chat_defaults=True,
            request_id=self.engine_id,
            origin=Origin(
                user=user,
                conversation=self.conversation.id,
                source=MQTT,
                title=self.conversation.title,
            ),
            cache_salt=salt_of(MQTT, user, stated, separate=separate_caches),
            priority=self.priority,
            deadline=(self.request.deadline_ms or deadline_ms) / 1000.0,
        )

    def drain(self) -> bool:
        """Drain the engine's stream; returns whether there was anything."""
        delta = self.stream.drain() if self.stream is not None else None
        if delta is None:
            return False
        self.started |= delta.num_tokens > 0
        if delta.thinking:
            self.reply.thinking += delta.thinking
            self.unsent_thinking.append(delta.thinking)
        if delta.text:
            self.reply.content += delta.text
            self.unsent.append(delta.text)
        # The server's settings may want them of each request.
        if self.request.logprobs:
            self.logprobs += delta.logprobs
            self.unsent_logprobs += delta.logprobs
        if self.request.prompt_logprobs is not None:
            self.prompt_logprobs += delta.prompt
        self.finish = delta.finish
        self.version = next_version()
        return True

    def accepted(self, depth: int) -> Outgoing:
        reply = Accepted(
            request_id=self.caller.request_id,
            attempt=self.attempt,
            queue_depth=depth,
            priority=self.priority,
            model=self.reply.model,
        )
        return self.reply_to.message(reply.encode())

    def delta(self, now: float) -> Outgoing:
        """All unsent output, as one delta."""
        text, thinking = "".join(self.unsent), "".join(self.unsent_thinking)
        logprobs = _reply_logprobs(self.unsent_logprobs) if self.unsent_logprobs else None
        self.forget()
        reply = DeltaReply(
            request_id=self.caller.request_id,
            attempt=self.attempt,
            seq=self.seq,
            choices=[
                Choice(
                    delta=DeltaText(content=text, reasoning_content=thinking or None),
                    logprobs=logprobs,
                )
            ],
        )
        self.seq += 1
        self.delta_sent_at = now
        return self.reply_to.message(reply.encode(), self.request.delta_qos)

    @property
    def has_unsent(self) -> bool:
        """Whether there is anything for a delta."""
        return bool(self.unsent or self.unsent_thinking or self.unsent_logprobs)

    def forget(self) -> None:
        """Drop the unsent output."""
        self.unsent.clear()
        self.unsent_thinking.clear()
        self.unsent_logprobs.clear()

    def ending(self) -> bytes:
        """The one message that ends this attempt."""
        finish, fault = self.finish, self.fault
        assert finish is not None
        if fault is not None:
            return error_reply(self.caller, fault, self.attempt, self.seq - 1).encode()
        usage, timings = finish.usage, finish.timings
        final = Final(
            request_id=self.caller.request_id,
            attempt=self.attempt,
            last_seq=self.seq - 1,
            text=self.reply.content,
            reasoning_content=self.reply.thinking or None,
            tool_calls=_reply_calls(finish.tool_use),
            logprobs=_reply_logprobs(self.logprobs) if self.request.logprobs else None,
            prompt_logprobs=self._prompt_logprobs(),
            finish_reason="length" if finish.reason is FinishReason.LENGTH else "stop",
            model=self.reply.model,
            usage=ReplyUsage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                reasoning_tokens=usage.reasoning_tokens,
            ),
            timings=ReplyTimings(
                queue_ms=milliseconds(timings.queue),
                ttft_ms=milliseconds(timings.ttft),
                tpot_ms=milliseconds(timings.tpot),
                e2e_ms=milliseconds(timings.e2e),
                thinking_ms=milliseconds(timings.thinking),
            ),
        )
        return final.encode()

    @property
    def fault(self) -> Fault | None:
        """The error, if there is one."""
        if self.finish is None:
            return None
        return fault_of(self.finish, self.refusal) or self.excess

    @property
    def excess(self) -> Fault | None:
        """The error if the request has more log-probabilities than `MAX_ALTERNATIVES` so far."""
        request, stream = self.request, self.stream
        wanted = {"logprobs": (len(self.logprobs), request.top_logprobs or 0)}
        if request.prompt_logprobs is not None and stream is not None:
            wanted["prompt_logprobs"] = stream.num_prompt_tokens, request.prompt_logprobs
        counts = {name: tokens * (1 + number) for name, (tokens, number) in wanted.items()}
        if (count := sum(counts.values())) <= MAX_ALTERNATIVES:
            return None
        name = max(counts, key=counts.__getitem__)
        return Fault(
            400,
            f"{name} of {wanted[name][0]} tokens make the reply's log-probabilities {count}, with "
            f"those of alternatives; at most {MAX_ALTERNATIVES} are allowed: state a smaller "
            "max_tokens, a shorter prompt or fewer alternatives",
            name,
        )

    def _prompt_logprobs(self) -> Any:
        number = self.request.prompt_logprobs
        return None if number is None else [*prompt_logprobs(self.prompt_logprobs, number)]

    def transcript(self) -> Transcript:
        """The chat in its current state. May be called from any thread."""
        running = self.engine_id if self.finish is None else None
        messages = self.history.messages
        if not self.is_session:
            # No session stores those before the last one.
            before = (turn.message() for turn in self.request.messages[:-1])
            messages = (*as_messages(before, self.conversation, self.key), *messages)
        return transcript_of(self.conversation, messages, self.version, running, self.stream)


def error_reply(
    caller: Caller, fault: Fault, attempt: int | None = None, last_seq: int | None = None
) -> ErrorReply:
    """The message for a fault.

    Args:
        attempt: None if the request was refused before it ran.
        last_seq: the number of the last delta; None if not known.
    """
    return ErrorReply(
        request_id=caller.request_id,
        attempt=attempt,
        error=ErrorBody.of(fault),
        retry_after_ms=fault.retry_after_ms,
        queue_depth=fault.queue_depth,
        last_seq=last_seq,
    )


def ending_of(caller: Caller, entry: JournalEntry) -> bytes | None:
    """The final message of a journalled attempt; None if it has not ended."""
    if entry.ending is not None:
        return entry.ending.encode()
    if entry.ended_at is None:
        return None
    # The process that ran it died before it could journal an ending.
    error = entry.error or ErrorInfo(
        "engine_error", "the journal does not say how this request ended"
    )
    return error_reply(caller, Fault.of(error), entry.attempt).encode()


def without_text(ending: bytes, size: int, most: int | None) -> bytes:
    """An error that replaces an ending that is too large for the broker. The text itself stays in
    the journal.

    Args:
        size: bytes of the ending's packet.
        most: bytes of the largest packet that the broker accepts.
    """
    reply = parse_reply(ending)
    assert isinstance(reply, (Final, ErrorReply))
    text = f"the reply is complete and takes {size} bytes; the broker forwards at most {most}"
    return ErrorReply(
        request_id=reply.request_id,
        attempt=reply.attempt,
        error=ErrorBody.of(Fault(413, text, reason="reply too large")),
        retry_after_ms=None,
        queue_depth=None,
        last_seq=reply.last_seq,
    ).encode()


def _reply_logprobs(tokens: Sequence[OutputToken]) -> ReplyLogprobs:
    return ReplyLogprobs.model_validate({"content": [token_bytes(token) for token in tokens]})


def _reply_calls(tool_use: ToolUse | None) -> list[ReplyCall] | None:
    if tool_use is None:
        return None
    return [ReplyCall.model_validate(call.in_openai_form()) for call in tool_use.calls]


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds, to a microsecond; None for None and NaN."""
    return None if seconds is None or math.isnan(seconds) else round(seconds * 1000.0, 3)
