"""MqttReadings: the MQTT gateway at one moment, for its panel."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.panels.broker_state import BrokerState
from widgets.panels.gateway_readings import GatewayReadings


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttReadings(GatewayReadings):
    """The gateway and its broker. `received` and `sent` count messages; first-token times count
    from publish.

    Attributes:
        protocol: "5" or "3.1.1"; empty while there is no connection.
        untold: endings that the broker has not accepted yet.
    """

    state: BrokerState
    protocol: str
    pool: str
    node: str
    untold: int
