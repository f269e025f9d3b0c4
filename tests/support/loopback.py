"""Loopback: a gateway's link to a broker and one client in memory, every step of it to be told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import Inbound, LinkPhase, LinkState, Outcome, Outgoing

IN_FLIGHT = 2


@dataclass(eq=False, slots=True)
class Published:
    """A message of the client, and whether the gateway has acknowledged it."""

    topic: str
    payload: bytes
    acknowledged: bool = False


@dataclass(eq=False, slots=True)
class _Publish:
    """A QoS 1 message of the gateway, and the waiter for the broker's acknowledgement."""

    message: Outgoing
    confirmed: asyncio.Future[Outcome] | None = None
    has_arrived: bool = False

    def settle(self, outcome: Outcome) -> None:
        if self.confirmed is not None:
            self.confirmed.set_result(outcome)


class Broker:
    """Keeps what was not acknowledged for the next connection, as a session does.

    Attributes:
        told: what the client got, in order.
    """

    def __init__(self) -> None:
        self._kept: list[Published] = []
        self.told: list[Outgoing] = []

    def publish(self, topic: str, payload: bytes) -> Published:
        message = Published(topic, payload)
        self._kept.append(message)
        return message

    @property
    def owed(self) -> list[Published]:
        """The messages that the gateway has not acknowledged, in order."""
        self._kept = [message for message in self._kept if not message.acknowledged]
        return list(self._kept)


class LoopbackLink:
    """Takes the place of `Link`. What is written reaches the broker, in order, when told to; what
    has not when the connection goes is lost, acknowledgements too. No more than `IN_FLIGHT` of
    QoS 1 are written before the broker acknowledges the first.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        receive: Callable[[Inbound], None],
        changed: Callable[[LinkState], None],
        **_: Any,
    ) -> None:
        self.state = LinkState(LinkPhase.OFFLINE, "", 0.0)
        self.is_congested = False
        self.max_packet: int | None = None
        self.received = self.published = 0
        self.broker = Broker()
        self._hand_over = receive
        self._changed = changed
        self._wire: list[Callable[[], None]] = []
        self._backlog: list[_Publish] = []
        self._in_flight: list[_Publish] = []
        self._given: list[Published] = []

    # What the gateway calls.

    def send(self, message: Outgoing) -> bool:
        if self.state.phase is not LinkPhase.ONLINE:
            return False
        if message.qos:
            self._backlog.append(_Publish(message))
            self._pump()
        else:
            self._wire.append(lambda: self.broker.told.append(message))
        return True

    def congested(self, qos: int, flow: str = "") -> bool:
        return self.is_congested

    async def deliver(self, message: Outgoing) -> Outcome:
        if self.state.phase is not LinkPhase.ONLINE:
            return Outcome.LOST
        confirmed: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._backlog.append(_Publish(message, confirmed))
        self._pump()
        return await confirmed

    @property
    def is_quiet(self) -> bool:
        """Whether all that was published has been acknowledged."""
        return not (self._wire or self._in_flight or self._backlog)

    # What a test tells it; on the gateway's loop.

    def connect(self) -> None:
        self._given = []
        self._go(LinkPhase.ONLINE)

    def receive(self, most: int) -> None:
        """The gateway reads up to `most` of what the broker has for it."""
        new = [message for message in self.broker.owed if message not in self._given][:most]
        self._given += new
        wire = self._wire
        for message in new:

            def acknowledge(message: Published = message) -> None:
                if self._wire is wire:  # else its connection has gone
                    wire.append(lambda: setattr(message, "acknowledged", True))

            self._hand_over(Inbound(message.topic, message.payload, acknowledge=acknowledge))

    def flush(self, most: int | None = None) -> None:
        """The broker reads the next `most` of what was written."""
        for arrive in self._wire[:most]:
            arrive()
        del self._wire[:most]

    def confirm(self) -> None:
        """The gateway reads the broker's acknowledgements."""
        for publish in tuple(self._in_flight):
            if publish.has_arrived:
                self._in_flight.remove(publish)
                publish.settle(Outcome.ACKNOWLEDGED)
        self._pump()

    def lose(self) -> None:
        """The connection goes, with what is on the way."""
        self._wire = []
        gone = self._in_flight + self._backlog
        self._in_flight, self._backlog = [], []
        for publish in gone:
            publish.settle(Outcome.LOST)
        self._go(LinkPhase.OFFLINE)

    def _pump(self) -> None:
        while self._backlog and len(self._in_flight) < IN_FLIGHT:
            publish = self._backlog.pop(0)
            self._in_flight.append(publish)
            self._wire.append(partial(self._arrive, publish))

    def _arrive(self, publish: _Publish) -> None:
        publish.has_arrived = True
        self.broker.told.append(publish.message)

    def _go(self, phase: LinkPhase) -> None:
        self.state = LinkState(phase, "", 0.0)
        self._changed(self.state)
