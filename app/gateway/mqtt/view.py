"""MqttView: the MQTT gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.gateway.mqtt.transport.link import LinkPhase
from app.gateway.view import GatewayView, Transcripts


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttView(GatewayView):
    """The gateway and its connection. A first token counts from publish, or from arrival here if
    the request does not say when it was sent.

    Attributes:
        address: the broker's address, without a password.
        phase: of the connection; it began at `since`.
        detail: what a person should know of the connection or the pool; empty if all is well.
        protocol: "5" or "3.1.1"; empty while there is no connection.
        undelivered: endings that the broker has not taken yet.
        received, published: messages since the start.
    """

    address: str
    pool: str
    node: str
    phase: LinkPhase
    detail: str
    protocol: str
    undelivered: int
    received: int
    published: int


class MqttSide(Transcripts, Protocol):
    """What the screen may ask of the gateway; from any thread."""

    def view(self) -> MqttView: ...

    def reconnect(self) -> None:
        """Connect again now, after a takeover or in the middle of a pause."""
        ...
