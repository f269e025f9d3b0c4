"""Intake: processes each message from a client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from app.conversations.history import History
from app.gateway.admission import Admission, Standing
from app.gateway.faults import Fault
from app.gateway.mqtt.delivery import deliver_ending
from app.gateway.mqtt.exchange import Exchange, ReplyTo, ending_of, error_reply
from app.gateway.mqtt.exchanges import Exchanges
from app.gateway.mqtt.node import Node
from app.gateway.mqtt.protocol.parsing import parse_request
from app.gateway.mqtt.protocol.replies import ErrorReply, parse_reply
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import EVERY, LEVEL, MAX_OWN_LEVELS, Caller, Topics
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.link import Inbound, Link, Outcome, Outgoing
from app.gateway.quotas import Quotas
from app.gateway.sources import MQTT
from app.gateway.tally import TOPIC_LENGTH, Tally
from app.store.conversation import Conversation, Message
from app.store.database import StoreError
from app.store.journal import JournalEntry
from app.store.store import Store
from engine.api.client import ChatMessage, EngineClient
from engine.api.errors import InvalidRequestError

log = logging.getLogger(__name__)

CANCELLED = Fault(499, "its owner cancelled this request", reason="cancelled")
RETRY_SECONDS = 1.0
# The largest plausible lag of a client's clock behind ours.
_MAX_TRANSIT = 3600.0


class Intake:
    """Every message is answered or logged, and acknowledged once that is certain.

    Messages that arrive together are journalled in one transaction, then acknowledged, then
    submitted to the engine: after a crash before the acknowledgement the broker sends them again,
    after a later crash they are in the journal.

    Args:
        system: system prompt of sessions that state none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        client: EngineClient,
        settings: MqttSettings,
        topics: Topics,
        store: Store,
        link: Link,
        exchanges: Exchanges,
        quotas: Quotas,
        tally: Tally,
        node: Node,
        system: str,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._topics = topics
        self._store = store
        self._link = link
        self._exchanges = exchanges
        self._quotas = quotas
        self._tally = tally
        self._node = node
        self._admission = Admission(
            client,
            max_request_bytes=settings.max_request_bytes,
            max_requests=settings.max_requests,
            quotas=quotas,
            standing=self._standing,
        )
        self._system = system
        self._clock = clock
        self._answers: set[asyncio.Task[None]] = set()

    def process(self, messages: Sequence[Inbound]) -> None:
        """Process messages from clients, in order."""
        admitted: list[tuple[Inbound, Exchange]] = []
        for message in messages:
            caller = self._topics.parse(message.topic)
            if caller is None or message.retained:
                reason = "it is retained" if message.retained else "its topic names no request"
                self._tally.bad(message.topic, message.payload, 400, reason)
                topic = ascii(message.topic[:TOPIC_LENGTH])
                log.warning("dropped a message on %s: %s", topic, reason)
                message.ack()
                continue
            if caller.is_cancel or self._exchanges.get(caller.key) is not None:
                # It may concern one that came with it.
                self._admit(admitted)
                admitted = []
            if caller.is_cancel:
                self._cancel(caller)
                message.ack()
            elif self._node.elder:  # the elder answers it
                message.ack()
            elif (exchange := self._request(message, caller)) is not None:
                admitted.append((message, exchange))
        self._admit(admitted)

    def _standing(self) -> Standing:
        node, exchanges = self._node, self._exchanges
        return Standing(node.draining, node.queue_limit, exchanges.num_waiting, len(exchanges))

    def _cancel(self, caller: Caller) -> None:
        """Cancel one request of this client, or all of them; those that have ended have their
        ending."""
        if caller.request_id == EVERY:
            whole = [e for e in self._exchanges if e.caller.branch == caller.branch]
        else:
            one = self._exchanges.get(caller.key)
            whole = [one] if one is not None else []
        self._exchanges.cancel(whole, CANCELLED)

    def _request(self, message: Inbound, caller: Caller) -> Exchange | None:
        """The exchange that a request begins; None if it is answered without one."""
        reply_to = ReplyTo(caller.reply_topic, message.correlation)
        try:
            self._admission.check_size(len(message.payload))
            reply_to = self._reply_to(message, caller)
            last = self._store.journal.last(caller.key)
            # Parsing a payload takes up to 20 ms: requests that cannot be served are refused
            # unparsed.
            is_new = last is None and self._exchanges.get(caller.key) is None
            if is_new:
                self._admission.check_room(caller.user)
            self._quotas.read(caller.user, len(message.payload))
            request = parse_request(message.payload, caller)
            digest = request.digest()
            if self._repeat(caller, digest, reply_to):
                message.ack()
                return None
            attempt = self._attempt(caller, digest, last)
            if isinstance(attempt, bytes):
                self._answer(message, reply_to.message(attempt))
                return None
            if not is_new:
                self._admission.check_room(caller.user)
            self._admission.check_model(request.model)
            exchange = self._open(caller, request, digest, reply_to, attempt)
        except Fault as fault:
            self._refuse(message, caller, reply_to, fault)
            return None
        except InvalidRequestError as error:
            self._refuse(message, caller, reply_to, Fault.of(error.info()))
            return None
        except StoreError as error:
            log.error("a request could not be looked up: %s", error)
            self._refuse(message, caller, reply_to, _no_journal())
            return None
        except Exception:
            # A bug of ours must not affect the other messages of the batch.
            log.exception("the request %s could not be handled", ascii(caller.key))
            mistake = Fault(500, "the server could not handle this request", reason="our mistake")
            self._refuse(message, caller, reply_to, mistake)
            return None
        self._exchanges.reserve(exchange)
        return exchange

    def _admit(self, admitted: Sequence[tuple[Inbound, Exchange]]) -> None:
        """Journal, acknowledge, submit."""
        if not admitted:
            return
        try:
            with self._store.transaction():
                for _message, exchange in admitted:
                    self._journal(exchange)
        except StoreError as error:
            log.error("%d requests could not be journalled: %s", len(admitted), error)
            for message, exchange in admitted:
                self._exchanges.withdraw(exchange)
                self._refuse(message, exchange.caller, exchange.reply_to, _no_journal())
            return
        for message, exchange in admitted:
            message.ack()
            if exchange.request.accepted:
                self._link.send(exchange.accepted(self._exchanges.num_waiting))
            self._exchanges.start(exchange)

    def _journal(self, exchange: Exchange) -> None:
        exchange.history.save()
        self._store.journal.start(
            JournalEntry(
                request_id=exchange.key,
                attempt=exchange.attempt,
                user=exchange.caller.user,
                conversation_id=exchange.conversation.id if exchange.is_session else None,
                source=MQTT,
                digest=exchange.digest,
                reply_to=exchange.reply_to.dump(),
            )
        )

    def _refuse(self, message: Inbound, caller: Caller, reply_to: ReplyTo, fault: Fault) -> None:
        """Refuse a request, which gets no attempt."""
        self._tally.refused(fault, caller.user)
        if fault.code in (400, 413):
            self._tally.bad(message.topic, message.payload, fault.code, fault.message)
        self._answer(message, reply_to.message(error_reply(caller, fault).encode()))

    def _answer(self, message: Inbound, answer: Outgoing) -> None:
        """Acknowledge a message once the broker has the answer: else it would not come again.

        Nothing else stores the answer, and messages in transit are lost with the connection.
        """
        task = asyncio.get_running_loop().create_task(self._deliver_answer(message, answer))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def answered(self) -> None:
        """Wait until the outcome of each answer without an exchange is known."""
        while self._answers:
            await asyncio.wait(self._answers)

    async def _deliver_answer(self, message: Inbound, answer: Outgoing) -> None:
        # A refused answer is not retried; one that met a full queue is.
        while await deliver_ending(self._link, answer) is Outcome.FULL:
            await asyncio.sleep(RETRY_SECONDS)
        message.ack()

    def _reply_to(self, message: Inbound, caller: Caller) -> ReplyTo:
        topic = message.response_topic
        if topic is None:
            return ReplyTo(caller.reply_topic, message.correlation)
        if not caller.owns(topic):
            text = f"ResponseTopic is {topic!r}; it must be below {caller.branch}, by no more than"
            text += f" {MAX_OWN_LEVELS} levels of {LEVEL}"
            raise Fault(403, text, "ResponseTopic", reason="response topic")
        return ReplyTo(topic, message.correlation)

    def _repeat(self, caller: Caller, digest: str, reply_to: ReplyTo) -> bool:
        """Whether this very request runs already; then its acceptance is sent again."""
        running = self._exchanges.get(caller.key)
        if running is None:
            return False
        if running.digest != digest:
            raise _conflict(caller)
        # The client may listen on another topic by now.
        running.reply_to = reply_to
        if running.request.accepted:
            self._link.send(running.accepted(self._exchanges.num_waiting))
        return True

    def _attempt(self, caller: Caller, digest: str, last: JournalEntry | None) -> int | bytes:
        """The number of the next attempt, or the last one's ending, to be sent again."""
        if last is None:
            return self._node.first_attempt
        if last.digest != digest:
            raise _conflict(caller)
        ending = ending_of(caller, last)
        if ending is None:  # Another live process has accepted it.
            raise Fault(503, "another server is answering this request", reason="served elsewhere")
        reply = parse_reply(ending)
        if isinstance(reply, ErrorReply) and reply.error.retryable:
            return max(last.attempt + 1, self._node.first_attempt)
        return ending

    def _open(
        self, caller: Caller, request: ChatRequest, digest: str, reply_to: ReplyTo, attempt: int
    ) -> Exchange:
        if request.session_id is None:
            # No session has such an id, whatever its pool is called.
            name = f"once/{caller.key}"
            conversation = Conversation(id=name, user=caller.user, source=MQTT)
            history = History(conversation)  # in memory
        else:
            history = self._session(caller, request, request.session_id)
        # A failed question is reused, not added again.
        question = history.asked(caller.key) or _add_messages(history, request)
        messages, context = history.prompt(question)
        if request.session_id is None:
            messages = self._one_shot(request)
        model = self._client.status().model
        reply = history.reply(
            question, model=model, request_id=caller.key, sampling=request.sampling()
        )
        now = self._clock()
        transit = 0.0 if request.sent_at is None else time.time() - request.sent_at
        return Exchange(
            caller=caller,
            request=request,
            digest=digest,
            reply_to=reply_to,
            attempt=attempt,
            priority=self._quotas.priority(caller.user, request.priority),
            history=history,
            reply=reply,
            messages=messages,
            context=context,
            published_at=now - transit if 0.0 <= transit <= _MAX_TRANSIT else now,
        )

    def _one_shot(self, request: ChatRequest) -> tuple[ChatMessage, ...]:
        """The chat of a request, with our system prompt if it has none."""
        messages = tuple(turn.message() for turn in request.messages)
        if messages[0].role == "system" or not self._system:
            return messages
        return (ChatMessage("system", self._system), *messages)

    def _session(self, caller: Caller, request: ChatRequest, session_id: str) -> History:
        """The conversation that a request continues or begins."""
        conversation_id = f"{MQTT}/{caller.pool}/{caller.user}/{session_id}"
        if self._exchanges.is_busy(conversation_id):
            raise _busy(session_id)
        has_system = request.messages[0].role == "system"
        conversation = self._store.conversation(conversation_id)
        if conversation is None:
            if request.messages[-1].role == "tool":
                text = f"session {session_id!r} has no reply that a tool could answer; it must"
                text += " begin with a message of the user"
                raise Fault(400, text, "messages", reason="bad request")
            self._store.free_id(conversation_id)
            conversation = Conversation(
                id=conversation_id,
                system=request.messages[0].message().content if has_system else self._system,
                user=caller.user,
                source=MQTT,
                is_open=False,
            )
        elif has_system and request.messages[0].content != conversation.system:
            text = f"session {session_id!r} has a system message already; only its first request"
            raise Fault(400, f"{text} may have one", "messages.0", reason="bad request")
        history = History(conversation, self._store)
        if history.is_busy:
            raise _busy(session_id)
        return history


def _add_messages(history: History, request: ChatRequest) -> Message:
    """Add the new messages of a request: its last one, or all tool results."""
    last = request.messages[-1].message()
    if last.role == "user":
        return history.add(last.content)
    new = request.messages if request.session_id is not None else request.messages[-1:]
    return history.add_outcomes([turn.message() for turn in new])


def _busy(session_id: str) -> Fault:
    text = f"session {session_id!r} has a request that has not ended; one at a time is allowed"
    return Fault(
        409, text, "session_id", reason="session busy", retryable=True, retry_after_ms=1000
    )


def _conflict(caller: Caller) -> Fault:
    text = f"request_id {caller.request_id!r} was used for another request; it must be a new one"
    return Fault(409, text, "request_id", reason="id conflict")


def _no_journal() -> Fault:
    return Fault(503, "the request could not be journalled; try again later", reason="no journal")
