"""MqttWatch: what the screen knows of the MQTT gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.screens.feeds.traffic import Traffic, figures_of
from widgets.panels.broker_state import BrokerState
from widgets.panels.mqtt_readings import MqttReadings

if TYPE_CHECKING:
    from app.gateway.mqtt.view import MqttSide, MqttView


class MqttWatch:
    """Looks at a gateway when told to.

    Attributes:
        gateway: None without MQTT.
        readings: what the last look found; None without a gateway.
    """

    def __init__(self, gateway: MqttSide | None) -> None:
        self.gateway = gateway
        self.readings: MqttReadings | None = None
        self._traffic = Traffic()
        self._told: BrokerState | None = None

    def look(self) -> None:
        if self.gateway is None:
            return
        view = self.gateway.view()
        self.readings = self._read(view)

    def new_state(self) -> BrokerState | None:
        """The state of the connection, if the user has not been told of it.

        An attempt to connect is never told: while a broker is away, attempts come and go.
        """
        state = self.readings.state if self.readings else None
        if state in (None, self._told, BrokerState.CONNECTING):
            return None
        self._told = state
        return state

    def _read(self, view: MqttView) -> MqttReadings:
        received, sent = self._traffic.rates(view.time, view.received, view.published)
        return MqttReadings(
            address=view.address,
            state=BrokerState[view.phase.name],
            detail=view.detail,
            protocol=view.protocol,
            pool=view.pool,
            node=view.node,
            received=received,
            sent=sent,
            untold=view.undelivered,
            **figures_of(view),
        )
