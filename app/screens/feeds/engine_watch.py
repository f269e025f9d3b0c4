"""EngineWatch: the state of the engine as the screen shows it, and its rates."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from engine.api.block_map import BlockView
from engine.api.client import EngineClient
from engine.api.knobs import KnobChange, KnobState
from engine.api.snapshot import RequestView, Snapshot
from engine.api.status import EnginePhase, EngineStatus, ModelCard
from engine.api.telemetry import StepRecord
from widgets.figures import lasting, size
from widgets.quantization import briefly

# Enough for 128 columns of the batch chart at its widest zoom, 64 steps to a column.
RECORDS_KEPT = 8192
# Measured over 2 s, a rate of 205 tok/s varied from 18 to 636, because chunks of prompts come
# between decodes.
RATE_SECONDS = 10.0
# The window for the sparkline of the rate, short enough to show bursts. An engine without a step
# for this long is idle; a shorter window would show chance.
MOMENT_SECONDS = 2.0
# A difference of this many seconds shows that the machine slept or that its clock was set.
CLOCK_SET_SECONDS = 5.0
# The pace is measured over the last seconds, because the hub's pace differs from file to file.
WINDOW_SECONDS = 10.0
LEAST_SECONDS = 1.0


class LoadingPace:
    """Adds pace and time left to the status of an engine that loads a model.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._of: tuple[str, int] = ("", 0)

    def with_pace(self, status: EngineStatus) -> EngineStatus:
        """The status, its detail preceded by both where bytes are being counted."""
        of = status.model, status.total_bytes
        if of != self._of or status.phase is not EnginePhase.LOADING:
            self._samples.clear()
            self._of = of
        if status.phase is not EnginePhase.LOADING or not status.total_bytes:
            return status
        now = self._clock()
        self._samples.append((now, status.loaded_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        if now - then < LEAST_SECONDS:
            return status
        pace = (status.loaded_bytes - before) / (now - then)
        left = (status.total_bytes - status.loaded_bytes) / pace if pace > 0 else None
        detail = f"{size(pace)}/s · {lasting(left)} left · {status.detail}"
        return replace(status, detail=detail)


class EngineWatch:
    """Reads an engine at each `poll`.

    Attributes:
        status: the engine's status at the last poll.
        snapshot: the newest one at the last poll; None before a model is loaded.
        records: the last steps of this model, the oldest first.
        views: the snapshot's requests by id.
        epoch: the time at which the engine's clock stood at 0, in seconds since the epoch.
    """

    def __init__(self, client: EngineClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self.status = client.status()
        self.snapshot: Snapshot | None = None
        self.records: deque[StepRecord] = deque(maxlen=RECORDS_KEPT)
        self.views: dict[str, RequestView] = {}
        self.epoch = 0.0
        self._recent: deque[tuple[float, StepRecord]] = deque()
        self._busy_since = self._polled_at = -math.inf
        self._pace = LoadingPace(clock)
        self._last_change: KnobChange | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether the engine computes on the cores that this program runs on."""
        return self.snapshot is not None and self.snapshot.model.device == "cpu"

    @property
    def card(self) -> ModelCard | None:
        """The loaded model; None if there is none."""
        return self.snapshot.model if self.snapshot is not None else None

    @property
    def model(self) -> str:
        """The name of the model, with the width of its quantized weights, and whether it does no
        more than complete text."""
        quantized = briefly(self.card) if self.card is not None else ""
        completes = self.card is not None and not self.card.has_chat_template
        parts = (self.status.model, "completion" if completes else "", quantized)
        return " · ".join(part for part in parts if part)

    @property
    def is_computing(self) -> bool:
        """Whether the engine has taken steps in the last `MOMENT_SECONDS`."""
        return bool(self._recent) and self._recent[-1][0] > self._polled_at - MOMENT_SECONDS

    def block(self, number: int) -> BlockView | None:
        """A block of the pool in full, once a snapshot has it."""
        return self._client.block(number)

    def poll(self) -> list[StepRecord]:
        """Read status, snapshot and steps; returns the new steps."""
        self.status = self._pace.with_pace(self._client.status())
        before, snapshot = self.snapshot, self._client.snapshot()
        if snapshot is not before:
            self.snapshot = snapshot
            self.views = {v.request_id: v for v in snapshot.requests} if snapshot else {}
            if snapshot is None or (before is not None and _is_other(before, snapshot)):
                self._start_anew()
            if snapshot is not None and (before is None or snapshot.time != before.time):
                self._set_epoch(time.time() - snapshot.time)  # an aged one is no newer
        last = self.records[-1].step if self.records else 0
        records = list(self._client.step_records(last)) if snapshot else []
        self.records.extend(records)
        now = self._clock()
        if records and not self.is_computing:
            # Tokens from before a pause say nothing about the rate now.
            self._recent.clear()
            self._busy_since = now if self._polled_at == -math.inf else self._polled_at
        self._polled_at = now
        self._recent.extend((now, record) for record in records)
        while self._recent and self._recent[0][0] <= now - RATE_SECONDS:
            self._recent.popleft()
        return records

    @property
    def tokens_per_second(self) -> float:
        """Output tokens a second, of all sessions together; 0 where nothing is computed."""
        return self._rate(sum(record.output_tokens for _, record in self._recent))

    @property
    def prefill_per_second(self) -> float:
        """Prompt tokens that were computed a second; 0 where nothing is computed."""
        return self._rate(sum(record.prefill_tokens for _, record in self._recent))

    @property
    def tokens_per_second_now(self) -> float:
        """Output tokens a second of the last `MOMENT_SECONDS`."""
        return sum(record.output_tokens for record in self._moment()) / MOMENT_SECONDS

    def _rate(self, tokens: int) -> float:
        """Tokens a second, over the last `RATE_SECONDS` or since the last pause."""
        if not self.is_computing:
            return 0.0
        seconds = min(self._polled_at - self._busy_since, RATE_SECONDS)
        return tokens / max(seconds, MOMENT_SECONDS)

    def _moment(self) -> list[StepRecord]:
        since = self._polled_at - MOMENT_SECONDS
        return [record for time, record in self._recent if time > since]

    @property
    def kv_waste(self) -> float | None:
        """The share of given token slots that were unused, over the steps of the last
        `MOMENT_SECONDS`; None without steps."""
        steps = self._moment()
        given = sum(record.given_slots for record in steps)
        unused = sum(record.unused_slots for record in steps)
        return unused / given if given else None

    def knob(self, name: str) -> KnobState | None:
        """The state of a knob; None before a model is loaded."""
        knobs = self.snapshot.knobs if self.snapshot else ()
        return next((knob for knob in knobs if knob.name == name), None)

    @property
    def paused(self) -> bool:
        """Whether the knob `paused` keeps the engine from planning steps."""
        knob = self.knob("paused")
        return knob is not None and bool(knob.effective)

    def new_knob_changes(self) -> list[KnobChange]:
        """The changes of knobs since the last call."""
        history = list(self.snapshot.knob_history) if self.snapshot else []
        if self._last_change in history:
            history = history[history.index(self._last_change) + 1 :]
        if history:
            self._last_change = history[-1]
        return history

    def _set_epoch(self, seen: float) -> None:
        """Set the epoch to the smallest value seen, because a snapshot is some time old when it is
        read."""
        if not self.epoch or abs(seen - self.epoch) > CLOCK_SET_SECONDS:
            self.epoch = seen
        self.epoch = min(self.epoch, seen)

    def _start_anew(self) -> None:
        """Forget the steps so far: another model counts its own from the beginning."""
        self.records.clear()
        self._recent.clear()


def _is_other(before: Snapshot, after: Snapshot) -> bool:
    """Whether a model was loaded between the two."""
    return before.model != after.model or after.step < before.step
