"""Traffic: what comes and goes over a gateway, as its panel shows it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypedDict

from engine.api.telemetry import Distribution
from widgets.panels.gateway_readings import BadMessage, GatewayUser, Refusals

if TYPE_CHECKING:
    from app.gateway.view import GatewayView

RATE_SECONDS = 5.0


class Traffic:
    """Rates over the last `RATE_SECONDS`, from counts that only grow."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int, int]] = deque()  # time, received, sent

    def rates(self, now: float, received: int, sent: int) -> tuple[float, float]:
        """Add what was counted until now, in seconds of one clock; what came and went a second."""
        recent = self._recent
        recent.append((now, received, sent))
        while len(recent) > 2 and recent[1][0] <= now - RATE_SECONDS:
            recent.popleft()
        then, received_then, sent_then = recent[0]
        seconds = max(now - then, 1e-3)
        return (received - received_then) / seconds, (sent - sent_then) / seconds


class Figures(TypedDict):
    """What `GatewayReadings` has of the same kind for every gateway."""

    lasted: float
    running: int
    waiting: int
    accepted: int
    finished: int
    rejected: tuple[Refusals, ...]
    first_token: Distribution
    bad: tuple[BadMessage, ...]
    users: tuple[GatewayUser, ...]


def figures_of(view: GatewayView) -> Figures:
    """The figures of a view."""
    return Figures(
        lasted=max(view.time - view.since, 0.0),
        running=view.running,
        waiting=view.waiting,
        accepted=view.accepted,
        finished=view.finished,
        rejected=tuple(Refusals(r.code, r.reason, r.count) for r in view.rejected),
        first_token=view.first_token,
        bad=tuple(BadMessage(b.time, b.topic, b.code, b.reason, b.excerpt) for b in view.bad),
        users=tuple(GatewayUser(u.name, u.running, u.waiting, u.rejected) for u in view.users),
    )
