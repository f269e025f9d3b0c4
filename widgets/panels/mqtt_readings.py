"""MqttReadings: the MQTT gateway at one moment, as its panel shows it."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.panels.broker_state import BrokerState
from widgets.panels.gateway_readings import GatewayReadings


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttReadings(GatewayReadings):
    """The gateway and its broker. Messages come and go; the first token counts from publish.

    Attributes:
        protocol: "5" or "3.1.1"; empty while there is no connection.
        untold: endings that the broker has not taken yet.
    """

    state: BrokerState
    protocol: str
    pool: str
    node: str
    untold: int
