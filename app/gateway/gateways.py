"""Gateways: the gateways that run beside the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.gateway.http.gateway import HttpGateway
    from app.gateway.mqtt.gateway import MqttGateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """The gateways that the settings enable; None for one that they do not."""

    mqtt: MqttGateway | None = None
    http: HttpGateway | None = None
