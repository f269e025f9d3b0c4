"""Alerts: compares figures with the user's limits, and warns when one is exceeded."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.settings.alerts import AlertKind, AlertRules
from engine.api.lifecycle import RequestState
from engine.api.snapshot import Snapshot
from widgets.figures import duration
from widgets.panels.gateway_readings import BrokerState, MqttReadings

# An alert ends when its figure has been below this share of the limit for this many seconds, so
# that a figure that oscillates around the limit is one alert.
CALM_SHARE = 0.9
CALM_SECONDS = 10.0
# Percentiles of fewer samples are noise.
LEAST_SAMPLES = 5
PREEMPTION_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Alert:
    """A limit was exceeded, or is met again.

    Attributes:
        is_over: whether it is met again.
    """

    name: str
    text: str
    is_over: bool


class Alerts:
    """Compares the figures of engine and gateway with the limits, at each `check`.

    Args:
        clock: monotonic seconds.

    Attributes:
        rules: may be replaced at any time.
    """

    def __init__(
        self, rules: AlertRules | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rules = rules or AlertRules()
        self._clock = clock
        self._raised: dict[str, float] = {}  # and when the figure was last above the calm share
        self._preempted: deque[tuple[float, int]] = deque()  # when, and all that were until then

    def check(self, snapshot: Snapshot | None, broker: MqttReadings | None) -> list[Alert]:
        """The alerts that have come or gone since the last look."""
        now = self._clock()
        if snapshot is not None:
            self._count_preemptions(snapshot, now)
        on = dict(self.rules.limits())
        self._raised = {
            name: since for name, since in self._raised.items() if name in {k.name for k in on}
        }
        return [
            alert
            for kind, limit in on.items()
            if (figure := self._figure(kind.name, snapshot, broker)) is not None
            for alert in self._judge(kind, figure, limit, now)
        ]

    def _judge(self, kind: AlertKind, figure: float, limit: float, now: float) -> Iterator[Alert]:
        if figure > limit:
            if kind.name not in self._raised:
                yield Alert(kind.name, _text(kind, figure, limit), is_over=False)
            self._raised[kind.name] = now
        elif kind.name in self._raised:
            if figure > limit * CALM_SHARE:
                self._raised[kind.name] = now
            elif now - self._raised[kind.name] >= CALM_SECONDS:
                del self._raised[kind.name]
                yield Alert(kind.name, _text(kind, figure, limit), is_over=True)

    def _figure(
        self, name: str, snapshot: Snapshot | None, broker: MqttReadings | None
    ) -> float | None:
        """The figure of an alert in its unit; None without a sample."""
        if name == "broker":
            if broker is None:
                return None
            away = broker.state not in (BrokerState.ONLINE, BrokerState.CONNECTING)
            # An attempt to connect is part of the time that the broker is away.
            return broker.lasted if away else 0.0 if broker.state is BrokerState.ONLINE else None
        if snapshot is None:
            return None
        if name in ("ttft", "tpot"):
            latency = getattr(snapshot.latency, name)
            targets = {k.name: float(k.requested) for k in snapshot.knobs if "target" in k.name}
            target = targets[f"{name}_target_ms"] / 1000
            enough = latency.count >= LEAST_SAMPLES and not math.isnan(latency.p99) and target
            return 100 * latency.p99 / target if enough else None
        if name == "kv":
            return 100 * snapshot.blocks.used / snapshot.blocks.num_blocks
        if name == "preemptions":
            return float(self._preempted[-1][1] - self._preempted[0][1])
        waiting = (r.queue or 0.0 for r in snapshot.requests if r.state is RequestState.WAITING)
        return max(waiting, default=0.0)

    def _count_preemptions(self, snapshot: Snapshot, now: float) -> None:
        total = snapshot.totals.preemptions
        if self._preempted and total < self._preempted[-1][1]:
            self._preempted.clear()  # counts restart with another model
        self._preempted.append((now, total))
        while len(self._preempted) > 1 and self._preempted[1][0] <= now - PREEMPTION_SECONDS:
            self._preempted.popleft()


def with_unit(kind: AlertKind, figure: float, form: str = ",.0f") -> str:
    """A figure of an alert for people; `form` is that of a number, and not of a time."""
    if kind.unit == "s":
        return duration(figure)
    space = "" if kind.unit.startswith("%") else " "
    return f"{figure:{form}}{space}{kind.unit}"


def _text(kind: AlertKind, figure: float, limit: float) -> str:
    """The alert as a sentence, with its figure and its limit."""
    bound = with_unit(kind, limit, "g")
    return f"{kind.title}: {with_unit(kind, figure)}, limit {bound}"
