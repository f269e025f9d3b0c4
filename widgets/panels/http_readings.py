"""HttpReadings: the HTTP gateway at one moment, for its panel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from widgets.glyphs import Mark
from widgets.panels.gateway_readings import GatewayReadings


class HttpState(StrEnum):
    """The state of the gateway. The value is the word shown beside the mark."""

    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"

    @property
    def mark(self) -> Mark:
        return _MARKS[self]


_MARKS = {
    HttpState.SERVING: Mark.DONE,
    HttpState.DRAINING: Mark.PREEMPTED,
    HttpState.STOPPED: Mark.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReadings(GatewayReadings):
    """The gateway. `received` and `sent` count requests; first-token times count from arrival.

    Attributes:
        connections: open connections.
    """

    state: HttpState
    connections: int
