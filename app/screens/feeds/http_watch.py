"""HttpWatch: what the screen knows of the HTTP gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.screens.feeds.traffic import Traffic, figures_of
from widgets.panels.http_readings import HttpReadings, HttpState

if TYPE_CHECKING:
    from app.gateway.http.view import HttpSide


class HttpWatch:
    """Looks at a gateway when told to.

    Attributes:
        gateway: None without HTTP.
        readings: what the last look found; None without a gateway.
    """

    def __init__(self, gateway: HttpSide | None) -> None:
        self.gateway = gateway
        self.readings: HttpReadings | None = None
        self._traffic = Traffic()
        self._told = HttpState.SERVING

    def look(self) -> None:
        if self.gateway is None:
            return
        view, failure = self.gateway.view(), self.gateway.failure
        refused = sum(rejection.count for rejection in view.rejected)
        came, went = self._traffic.rates(
            view.time, view.accepted + refused, view.finished + refused
        )
        state = HttpState.DRAINING if view.draining else HttpState.SERVING
        self.readings = HttpReadings(
            address=view.url,
            state=HttpState.STOPPED if failure else state,
            detail=failure,
            received=came,
            sent=went,
            connections=view.connections,
            **figures_of(view),
        )

    def has_stopped(self) -> bool:
        """Whether it has given up, and the user has not been told of it."""
        before = self._told
        if self.readings is not None:
            self._told = self.readings.state
        return self._told is HttpState.STOPPED and before is not HttpState.STOPPED
