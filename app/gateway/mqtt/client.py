"""AskClient: asks a pool one question over MQTT and waits for its answer."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from app.gateway.mqtt.protocol.cards import NodeCard
from app.gateway.mqtt.protocol.replies import (
    Accepted,
    DeltaReply,
    ErrorReply,
    Final,
    Reply,
    parse_reply,
)
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import EVERY, Caller, Topics
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import Inbound, Link, LinkPhase, LinkState, Outcome, Outgoing

log = logging.getLogger(__name__)

# Retained cards come right after the subscription; this leaves time for a distant broker.
CARD_SECONDS = 2.0
ACCEPT_SECONDS = 5.0
MAX_SENDS = 4
CANCEL_SECONDS = 3.0
MAX_BACK_OFF = 10.0
# Codes of transient faults: a busy session, a full queue, a restart. A broken engine (500) is not
# transient.
PASSING = (409, 429, 503)
CANCELLED = 499

Heard = Callable[[Accepted | DeltaReply], None]


@dataclass(slots=True)
class Asking:
    """The progress of a request.

    Attributes:
        caller: the caller, with the request's id.
        node: the name of the node that serves it.
        begun: when it began under this id, in seconds of the loop's clock.
        send_at: when it is sent next, in seconds of the loop's clock; None while the server runs
            it.
        attempt: the smallest attempt whose replies count. Replies to earlier ones are void.
        sends: how often the broker accepted it since the last reply to it.
        refusals: how often it was refused in a row.
        is_known: whether the server has accepted it at least once.
    """

    caller: Caller
    node: str
    begun: float
    send_at: float | None
    attempt: int = 1
    sends: int = 0
    refusals: int = 0
    is_known: bool = False

    def counts(self, reply: Reply) -> bool:
        """Whether a reply is to this request and not to an attempt that is void."""
        return reply.request_id == self.caller.request_id and (
            reply.attempt is None or reply.attempt >= self.attempt
        )


class AskError(Exception):
    """There is no answer; the message says why.

    Attributes:
        reply: the server's error; None if the error is the client's own.
    """

    def __init__(self, message: str, reply: ErrorReply | None = None) -> None:
        super().__init__(message)
        self.reply = reply


class AskClient:
    """A connection to a broker, with its own client identifier, for one request at a time.

    Args:
        settings: the pool, and the options of the connection.
        address: the broker. Its user is the caller; without one it is the login name.
        notice: receives a sentence on each event that delays the answer.

    Raises:
        AskError: the user has no name, or one that is invalid in a topic.
    """

    def __init__(
        self, settings: MqttSettings, address: BrokerAddress, notice: Callable[[str], None]
    ) -> None:
        self._address = address
        try:
            user = address.username or getpass.getuser()
            self._me = Caller(settings.pool, user, f"ask-{uuid.uuid4().hex[:12]}", EVERY)
        except ValueError as error:
            raise AskError(str(error)) from None
        except (KeyError, OSError):  # for example a container whose user has no name
            raise AskError(f"there is no user name; write {address.scheme}://USER@HOST") from None
        self._notice = notice
        self._topics = Topics(settings.pool, settings.node)
        self._cards: dict[str, NodeCard] = {}
        self._events: asyncio.Queue[Reply | NodeCard | LinkState] = asyncio.Queue()
        self._link = Link(
            address,
            client_id=self._me.client,
            subscriptions=(
                (self._topics.all_status, 1),
                (f"{self._me.branch}+", 1),
            ),
            # With the will, a killed client takes no more of the batch's time.
            will=Outgoing(self._me.cancel_topic, b""),
            birth=tuple,
            receive=self._receive,
            changed=self._events.put_nowait,
            keepalive=settings.keepalive,
            protocol=settings.protocol,
            keeps_session=False,
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._link.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        await self._link.close()
        await self._running

    async def connected(self, timeout: float) -> LinkState:
        """Wait for the first connection; returns its state.

        Raises:
            AskError: the connection failed, or was not there within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while (state := self._link.state).phase is not LinkPhase.ONLINE:
                    if state.phase in (LinkPhase.OFFLINE, LinkPhase.TAKEN_OVER):
                        raise AskError(f"cannot connect to {self._address}: {state.detail}")
                    await self._next(None)
        except TimeoutError:
            raise AskError(f"{self._address} does not answer within {timeout:g} s") from None
        return state

    async def ask(self, request: ChatRequest, timeout: float, heard: Heard) -> Final:
        """Send a request, and resend it if that helps, until its final reply comes.

        If the wait ends otherwise (an error, a cancelled task, a `heard` that raises), the request
        is cancelled.

        Args:
            request: the request to send.
            timeout: total seconds.
            heard: receives each reply before the final one. A reply with another request id or a
                larger attempt voids those before it.

        Raises:
            AskError: there is no answer.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        await self.connected(timeout)
        try:
            async with asyncio.timeout_at(deadline):
                node = await self._find_node(len(request.encode()))
                try:
                    return await self._converse(request, node, deadline, heard)
                except BaseException:
                    await self._cancel()
                    raise
        except TimeoutError:
            raise AskError(f"no reply within {timeout:g} s{self._absence()}") from None

    async def _find_node(self, size: int) -> str:
        """Wait for the node that serves the pool; returns its name.

        Raises:
            AskError: none serves, or it refuses requests of `size` bytes.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CARD_SECONDS):
                while not self._serving():
                    await self._next(None)
        card = self._serving()
        if card is None:
            unseen = "" if self._cards else f", or {self._me.user!r} may not see who does"
            raise AskError(
                f"nobody serves the pool {self._me.pool!r} on {self._address}"
                f"{unseen}{self._absence()}"
            )
        if size > (most := card.limits.max_request_bytes):
            raise AskError(f"the request has {size:,} bytes; {card.node} takes at most {most:,}")
        return card.node

    async def _converse(
        self, request: ChatRequest, node: str, deadline: float, heard: Heard
    ) -> Final:
        while not self._events.empty():
            await self._next(None)  # cards before the request are no news to it
        loop = asyncio.get_running_loop()
        asking = Asking(self._new_caller(), node, begun=loop.time(), send_at=loop.time())
        shown = ""
        while True:
            if asking.send_at is not None and asking.send_at <= loop.time():
                await self._send(asking, request)
            match await self._next(asking.send_at):
                case LinkState(phase=LinkPhase.ONLINE):
                    shown = ""
                    if self._is_back(asking):
                        asking.send_at = loop.time()  # the broker may have dropped the reply
                case LinkState(phase=LinkPhase.OFFLINE, detail=detail) if detail != shown:
                    shown = detail
                    self._notice(
                        f"the connection to {self._address} is lost: {detail}; trying again"
                    )
                case NodeCard() as card:
                    self._follow(card, asking)
                case Accepted() | DeltaReply() as reply if asking.counts(reply):
                    asking.attempt, asking.is_known = reply.attempt, True
                    asking.sends = asking.refusals = 0
                    asking.send_at = None
                    heard(reply)
                case Final() as reply if asking.counts(reply):
                    return reply
                case ErrorReply() as reply if asking.counts(reply):
                    self._refused(reply, asking, deadline)

    async def _send(self, asking: Asking, request: ChatRequest) -> None:
        if asking.sends == MAX_SENDS and not asking.is_known:
            raise AskError(f"no answer to a request sent {MAX_SENDS} times{self._absence()}")
        asking.send_at = asyncio.get_running_loop().time() + ACCEPT_SECONDS
        denied = self._link.denied
        stamped = request.model_copy(update={"sent_at": time.time()})
        message = Outgoing(asking.caller.request_topic, stamped.encode())
        if await self._link.deliver(message) is Outcome.ACKNOWLEDGED:
            asking.sends += 1
        elif self._link.denied > denied:
            raise AskError(
                f"{self._address} does not allow requests on {asking.caller.request_topic}"
            )

    def _follow(self, card: NodeCard, asking: Asking) -> None:
        """Resend the request if, by this new card, the serving node may not have it."""
        serving = self._serving()
        if serving is None:
            if card.node == asking.node:
                self._notice(f"{card.node} is {card.state}")
        elif self._cards[asking.node].state == "online":
            if card.node == asking.node:
                # It may have lost the request.
                asking.send_at = asyncio.get_running_loop().time()
        else:
            # Nodes do not know of each other: under one id their attempts look the same.
            self._notice(f"{serving.node} has taken over; asking again")
            asking.node = serving.node
            self._restart(asking)

    def _restart(self, asking: Asking) -> None:
        now = asyncio.get_running_loop().time()
        asking.caller, asking.begun, asking.send_at = self._new_caller(), now, now
        asking.attempt = 1

    def _refused(self, reply: ErrorReply, asking: Asking, deadline: float) -> None:
        """Resend a refused request, if that may help.

        Raises:
            AskError: it may not.
        """
        now, error = asyncio.get_running_loop().time(), reply.error
        if error.code == CANCELLED and self._is_back(asking):
            self._notice("the request was cancelled as the connection was lost; asking again")
            self._restart(asking)
            return
        if reply.retry_after_ms is not None:
            delay = reply.retry_after_ms / 1e3
        else:
            delay = min(MAX_BACK_OFF, 2.0**asking.refusals)
        delay *= random.uniform(1.0, 1.25)  # so that clients refused together return apart
        if not error.retryable or error.code not in PASSING or now + delay > deadline:
            raise AskError(error.message, reply)
        self._notice(f"{error.message}; asking again in {delay:.1f} s")
        asking.refusals += 1
        asking.sends = 0
        asking.send_at = now + delay
        if reply.attempt is not None:
            asking.attempt = reply.attempt + 1

    async def _cancel(self) -> None:
        """Cancel at the server, and wait until the broker has that message."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._link.deliver(Outgoing(self._me.cancel_topic, b""))

    async def _next(self, until: float | None) -> Reply | NodeCard | LinkState | None:
        """The next event; None if there is none by `until`, in seconds of the loop's clock.

        Raises:
            AskError: the connection has ended for good.
        """
        try:
            async with asyncio.timeout_at(until):
                event = await self._events.get()
        except TimeoutError:
            return None
        gone = (LinkPhase.TAKEN_OVER, LinkPhase.STOPPED)
        if isinstance(event, LinkState) and event.phase in gone:
            raise AskError(f"the connection to {self._address} has ended: {event.detail}")
        return event

    def _receive(self, message: Inbound) -> None:
        message.ack()
        try:
            if message.topic.startswith(self._me.branch):
                self._events.put_nowait(parse_reply(message.payload))
            elif self._topics.is_status(message.topic):
                self._hear_node(message)
        except ValueError:
            log.warning("a message on %s is not of protocol version 1", ascii(message.topic))

    def _hear_node(self, message: Inbound) -> None:
        """Store a node's card.

        Raises:
            ValueError: the message is no card.
        """
        node = self._topics.node_of(message.topic)
        if message.payload:
            card = NodeCard.model_validate_json(message.payload)
        elif node in self._cards:  # an operator has removed a dead node's card
            card = self._cards[node].model_copy(update={"state": "offline"})
        else:
            return
        self._cards[node] = card
        self._events.put_nowait(card)

    def _new_caller(self) -> Caller:
        return replace(self._me, request_id=uuid.uuid4().hex)

    def _serving(self) -> NodeCard | None:
        return next((card for card in self._cards.values() if card.state == "online"), None)

    def _is_back(self, asking: Asking) -> bool:
        """Whether the connection was lost and restored since the request began. Then the broker has
        published the will."""
        state = self._link.state
        return state.phase is LinkPhase.ONLINE and state.since > asking.begun

    def _absence(self) -> str:
        """The missing connection or nodes, as the end of a sentence."""
        state = self._link.state
        if state.phase is not LinkPhase.ONLINE:
            return f"; the connection to {self._address} is lost: {state.detail}"
        away = [f"{c.node} is {c.state}" for c in self._cards.values() if c.state != "online"]
        return f"; {', '.join(away)}" if away else ""
