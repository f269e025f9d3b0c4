"""HttpView: the HTTP gateway at one moment, as immutable plain data for any thread."""

from __future__ import annotations

from dataclasses import dataclass

from app.gateway.view import BadMessage, Rejection, UserView
from engine.api.telemetry import Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpView:
    """The gateway and its requests.

    Attributes:
        time: when the view was made, in seconds of the engine's clock.
        url: where it is reached.
        draining: whether it takes nothing new.
        connections: that are open.
        running: requests that have not ended.
        waiting: how many of these have no first token.
        accepted, finished: requests since the start.
        rejected: refused requests by reason, the most frequent reason first.
        first_token: seconds from arrival to first token, over the last minute.
        bad: the last requests that could not be read, the newest first.
        users: those with requests here, the busiest first.
    """

    time: float
    url: str
    draining: bool
    connections: int
    running: int
    waiting: int
    accepted: int
    finished: int
    rejected: tuple[Rejection, ...]
    first_token: Distribution
    bad: tuple[BadMessage, ...]
    users: tuple[UserView, ...]
