"""Outgoing and Inbound: messages that we publish, and messages that come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish.

    Attributes:
        qos: 0 or 1.
        retain: whether the broker is to keep the message at its topic.
        correlation: MQTT 5's CorrelationData; 3.1.1 has no place for it.
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
        """The most bytes that the PUBLISH packet may have. Header, identifier and lengths take 20
        of them."""
        size = len(self.topic.encode()) + len(self.payload) + len(self.correlation or b"")
        return 20 + size


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message that came.

    Attributes:
        retained: whether the broker has kept it, or its sender wants it kept. Only MQTT 5 tells the
            latter.
        duplicate: whether the broker may have sent it before.
        response_topic: MQTT 5's ResponseTopic, if the sender set one.
        correlation: MQTT 5's CorrelationData, if the sender set it.
        acknowledge: acknowledges the message; None where that is not needed (QoS 0).
    """

    topic: str
    payload: bytes
    retained: bool = False
    duplicate: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """Tell the broker that the message is safe with us. This has no effect if the connection on
        which it came has gone."""
        if self.acknowledge is not None:
            self.acknowledge()
