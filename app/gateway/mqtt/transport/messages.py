"""Outgoing and Inbound: messages to publish, and received messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish.

    Attributes:
        qos: 0 or 1.
        retain: whether the broker retains the message at its topic.
        correlation: MQTT 5's CorrelationData; 3.1.1 cannot carry it.
        flow: messages of QoS 1 wait for those before them in the same flow. Flows take turns.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    correlation: bytes | None = None
    flow: str = ""

    @property
    def packet_bytes(self) -> int:
        """The maximum size of the PUBLISH packet in bytes. Header, identifier and lengths take 20
        of them."""
        size = len(self.topic.encode()) + len(self.payload) + len(self.correlation or b"")
        return 20 + size


@dataclass(frozen=True, slots=True)
class Inbound:
    """A received message.

    Attributes:
        retained: whether the broker has retained it, or its sender wants that. Only MQTT 5 shows
            the latter.
        duplicate: whether the broker may have sent it before.
        response_topic: MQTT 5's ResponseTopic, if the sender set one.
        correlation: MQTT 5's CorrelationData, if the sender set it.
        acknowledge: acknowledges the message; None if that is not needed (QoS 0).
    """

    topic: str
    payload: bytes
    retained: bool = False
    duplicate: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """Acknowledge to the broker that the message is safe. This has no effect if its connection
        has gone."""
        if self.acknowledge is not None:
            self.acknowledge()
