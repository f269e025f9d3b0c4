"""MqttWatch: what the screen knows of the MQTT gateway, and the gateway's rates."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from widgets.panels.broker_state import BrokerState
from widgets.panels.mqtt_readings import BadMessage, MqttReadings, MqttUser, Refusals

if TYPE_CHECKING:
    from app.gateway.mqtt.view import Gateway, GatewayView

RATE_SECONDS = 5.0


class MqttWatch:
    """Looks at a gateway when told to.

    Attributes:
        gateway: None without MQTT.
        readings: what the last look found; None without a gateway.
    """

    def __init__(self, gateway: Gateway | None) -> None:
        self.gateway = gateway
        self.readings: MqttReadings | None = None
        self._recent: deque[tuple[float, int, int]] = deque()  # time, received, published
        self._told: BrokerState | None = None

    def look(self) -> None:
        if self.gateway is None:
            return
        view = self.gateway.view()
        self._recent.append((view.time, view.received, view.published))
        while len(self._recent) > 2 and self._recent[1][0] <= view.time - RATE_SECONDS:
            self._recent.popleft()
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

    def _read(self, view: GatewayView) -> MqttReadings:
        then, received, published = self._recent[0]
        seconds = max(view.time - then, 1e-3)
        return MqttReadings(
            address=view.address,
            state=BrokerState[view.phase.name],
            detail=view.detail,
            lasted=max(view.time - view.since, 0.0),
            protocol=view.protocol,
            pool=view.pool,
            node=view.node,
            received=(view.received - received) / seconds,
            published=(view.published - published) / seconds,
            running=view.running,
            waiting=view.waiting,
            untold=view.undelivered,
            accepted=view.accepted,
            finished=view.finished,
            rejected=tuple(Refusals(r.code, r.reason, r.count) for r in view.rejected),
            first_token=view.first_token,
            bad=tuple(BadMessage(b.time, b.topic, b.code, b.reason, b.excerpt) for b in view.bad),
            users=tuple(MqttUser(u.name, u.running, u.waiting, u.rejected) for u in view.users),
        )
