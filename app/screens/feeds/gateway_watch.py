"""MqttWatch, HttpWatch: the state and the traffic of a gateway, as its panel shows them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from widgets.panels.gateway_readings import (
    BrokerState,
    GatewayReadings,
    HttpReadings,
    HttpState,
    MqttReadings,
)

if TYPE_CHECKING:
    from app.gateway.http.view import HttpSide
    from app.gateway.mqtt.view import MqttSide, MqttView
    from app.gateway.view import GatewayView

R = TypeVar("R", bound=GatewayReadings)

RATE_SECONDS = 5.0


class Traffic:
    """Rates over the last `RATE_SECONDS`, from counts that only grow."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int, int]] = deque()  # time, received, sent

    def rates(self, now: float, received: int, sent: int) -> tuple[float, float]:
        """Add the counts at a time of one clock; returns the rates of both in 1/s."""
        recent = self._recent
        recent.append((now, received, sent))
        while len(recent) > 2 and recent[1][0] <= now - RATE_SECONDS:
            recent.popleft()
        then, received_then, sent_then = recent[0]
        seconds = max(now - then, 1e-3)
        return (received - received_then) / seconds, (sent - sent_then) / seconds


def _readings(kind: type[R], view: GatewayView, **own: Any) -> R:
    """Readings of a kind: the figures that every gateway has, and those of its own."""
    return kind(
        lasted=max(view.time - view.since, 0.0),
        running=view.running,
        waiting=view.waiting,
        accepted=view.accepted,
        finished=view.finished,
        rejected=view.rejected,
        first_token=view.first_token,
        bad=view.bad,
        users=view.users,
        **own,
    )


class MqttWatch:
    """Reads a gateway at each `poll`.

    Attributes:
        gateway: None without MQTT.
        readings: those of the last look; None without a gateway.
    """

    def __init__(self, gateway: MqttSide | None) -> None:
        self.gateway = gateway
        self.readings: MqttReadings | None = None
        self._traffic = Traffic()
        self._reported: BrokerState | None = None

    def poll(self) -> None:
        if self.gateway is None:
            return
        view = self.gateway.view()
        self.readings = self._read(view)

    def new_state(self) -> BrokerState | None:
        """The state of the connection, if it differs from the last one returned.

        `CONNECTING` is never returned: while a broker is away, attempts come and go.
        """
        state = self.readings.state if self.readings else None
        if state in (None, self._reported, BrokerState.CONNECTING):
            return None
        self._reported = state
        return state

    def _read(self, view: MqttView) -> MqttReadings:
        received, sent = self._traffic.rates(view.time, view.received, view.published)
        return _readings(
            MqttReadings,
            view,
            address=view.address,
            state=BrokerState[view.phase.name],
            detail=view.detail,
            protocol=view.protocol,
            pool=view.pool,
            node=view.node,
            received=received,
            sent=sent,
            undelivered=view.undelivered,
        )


class HttpWatch:
    """Reads a gateway at each `poll`.

    Attributes:
        gateway: None without HTTP.
        readings: those of the last look; None without a gateway.
    """

    def __init__(self, gateway: HttpSide | None) -> None:
        self.gateway = gateway
        self.readings: HttpReadings | None = None
        self._traffic = Traffic()
        self._reported = HttpState.SERVING

    def poll(self) -> None:
        if self.gateway is None:
            return
        view, failure = self.gateway.view(), self.gateway.failure
        refused = sum(rejection.count for rejection in view.rejected)
        came, went = self._traffic.rates(
            view.time, view.accepted + refused, view.finished + refused
        )
        state = HttpState.DRAINING if view.draining else HttpState.SERVING
        self.readings = _readings(
            HttpReadings,
            view,
            address=view.url,
            state=HttpState.STOPPED if failure else state,
            detail=failure,
            received=came,
            sent=went,
            connections=view.connections,
        )

    def has_stopped(self) -> bool:
        """Whether the gateway has ended since the last call."""
        before = self._reported
        if self.readings is not None:
            self._reported = self.readings.state
        return self._reported is HttpState.STOPPED and before is not HttpState.STOPPED
