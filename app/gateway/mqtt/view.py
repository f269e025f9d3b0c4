"""MqttView: the MQTT gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.gateway.mqtt.transport.link import LinkPhase
from app.gateway.view import GatewayView, Transcripts


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttView(GatewayView):
    """The gateway and its connection. First-token times count from publish, or from arrival here if
    the request does not state when it was sent.

    Attributes:
        address: the broker's address, without a password.
        phase: of the connection; it began at `since`.
        detail: a remark on the connection or the pool; empty if all is well.
        protocol: "5" or "3.1.1"; empty while there is no connection.
        undelivered: endings that the broker has not accepted yet.
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
    """The gateway's interface for the screen; callable from any thread."""

    def view(self) -> MqttView: ...

    def reconnect(self) -> None:
        """Reconnect now, after a takeover or during a pause."""
        ...
