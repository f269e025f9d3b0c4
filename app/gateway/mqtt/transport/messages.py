"""Outgoing and Inbound: what is published, and what comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish.

    Attributes:
        qos: 0 or 1.
        correlation: MQTT 5's CorrelationData; 3.1.1 has no place for it.
        flow: messages of QoS 1 wait for those of the same flow; flows take turns.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    correlation: bytes | None = None
    flow: str = ""

    @property
    def packet_bytes(self) -> int:
        """At most what its PUBLISH takes: header, identifier and lengths make 20."""
        size = len(self.topic.encode()) + len(self.payload) + len(self.correlation or b"")
        return 20 + size


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message that came.

    Attributes:
        retained: the broker has kept it, or its sender wants that; the latter only MQTT 5 tells.
        duplicate: the broker may have sent it before.
        response_topic: MQTT 5's ResponseTopic, if the sender set one.
        correlation: MQTT 5's CorrelationData, likewise.
        acknowledge: None where nothing is to be acknowledged (QoS 0).
    """

    topic: str
    payload: bytes
    retained: bool = False
    duplicate: bool = False
    response_topic: str | None = None
    correlation: bytes | None = None
    acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """Tell the broker that it is ours now; of no effect when its connection has gone."""
        if self.acknowledge is not None:
            self.acknowledge()
