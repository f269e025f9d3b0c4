"""LiveFeed: the engine's state as events, polled only while there are listeners, once for all."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.gateway.faults import Fault
from app.gateway.http.page.frame import Frame, encoded, step_data
from engine.api.client import EngineClient
from engine.api.snapshot import Snapshot

log = logging.getLogger(__name__)

FRAME_SECONDS = 0.25
# The steps that a newly opened page gets, and that a late one can catch up with: 2 s of a device
# that takes 4 ms a step.
STEPS_HELD = 512
# A frame of a full batch takes some milliseconds to make, for all listeners, but 0.1 MB to send.
MAX_LISTENERS = 64
# Of one key, or of one address if there are no keys: a hidden page does not listen.
MAX_OF_ONE = 16
# Listeners reserved for operators: they look when something is wrong.
KEPT_FOR_OPERATORS = 8


@dataclass(slots=True)
class _Step:
    number: int
    data: bytes


class LiveFeed:
    """Makes a frame four times a second, on the gateway's loop, and keeps the last steps. A slow
    listener misses frames and delays no other: it gets the newest frame, and the steps that it has
    missed, as far as they are kept.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._places: Counter[str] = Counter()
        self._listeners = 0
        self._polling: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._frame: Frame | None = None
        self._steps: deque[_Step] = deque(maxlen=STEPS_HELD)
        self._seen: Snapshot | None = None
        self._epoch = 0
        self._knobs_version = 0
        self._closed = False

    @property
    def num_listeners(self) -> int:
        return self._listeners

    @contextmanager
    def place(self, who: str, is_operator: bool) -> Iterator[None]:
        """Reserve a place for a listener.

        Raises:
            Fault: there is none; 429 if the caller's own pages take them.
        """
        if self._closed:
            raise Fault(503, "the server is shutting down", reason="draining")
        number, own = self._places.total(), self._places[who]
        if own >= MAX_OF_ONE:
            text = f"{own} pages of {who!r} are open; at most {MAX_OF_ONE} may be"
            raise Fault(429, text, reason="too many pages", retry_after_ms=5000)
        most = MAX_LISTENERS if is_operator else MAX_LISTENERS - KEPT_FOR_OPERATORS
        if number >= most:
            text = f"{number} pages are open; at most {most} may be"
            raise Fault(503, text, reason="too many pages", retry_after_ms=5000)
        self._places[who] += 1
        try:
            yield
        finally:
            self._places[who] -= 1
            if not self._places[who]:
                del self._places[who]

    async def events(self, is_operator: bool) -> AsyncGenerator[bytes, None]:
        """Each frame as a JSON object, until the feed is closed."""
        self._listeners += 1
        try:
            if self._polling is None:
                self._polling = asyncio.get_running_loop().create_task(self._poll())
                self._polling.add_done_callback(self._poll_ended)
            polling, last = self._polling, None
            while not polling.done():
                news, frame = self._news, self._frame
                if frame is None or frame is last:
                    await news.wait()
                    continue
                yield self._payload(frame, last, is_operator)
                last = frame
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._rest()

    def close(self) -> None:
        """End all events."""
        self._closed = True
        self._rest()

    def _rest(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        # The next listener gets no old frame.
        self._polling = self._frame = None

    def _poll_ended(self, polling: asyncio.Task[None]) -> None:
        if self._polling is polling:
            self._rest()
        self._wake_listeners()

    async def _poll(self) -> None:
        try:
            while True:
                self._frame = self._next_frame()
                self._wake_listeners()
                await asyncio.sleep(FRAME_SECONDS)
        except Exception:
            # Pages reconnect; the gateway's chats are unaffected.
            log.exception("the live data could not be made")

    def _wake_listeners(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _next_frame(self) -> Frame:
        status, snapshot, seen = self._client.status(), self._client.snapshot(), self._seen
        if _is_other(seen, snapshot):
            self._steps.clear()
            self._epoch += 1
        if snapshot is not None:
            if seen is None or (seen.knobs, seen.knob_history) != (
                snapshot.knobs,
                snapshot.knob_history,
            ):
                self._knobs_version += 1
            last = max(self._steps[-1].number if self._steps else 0, snapshot.step - STEPS_HELD)
            self._steps.extend(
                _Step(record.step, encoded(step_data(record)))
                for record in self._client.step_records(last)
            )
        self._seen = snapshot
        return Frame(
            snapshot,
            status,
            epoch=self._epoch,
            last_step=self._steps[-1].number if self._steps else 0,
            knobs_version=self._knobs_version,
        )

    def _payload(self, frame: Frame, last: Frame | None, is_operator: bool) -> bytes:
        is_anew = last is None or last.epoch != frame.epoch
        since = 0 if last is None or is_anew else last.last_step
        steps = b",".join(
            step.data for step in self._steps if since < step.number <= frame.last_step
        )
        payload = b"{" + frame.body(is_operator) + b',"steps":[' + steps + b"]"
        if last is None or is_anew or last.knobs_version != frame.knobs_version:
            payload += b',"knobs":' + frame.knobs(is_operator)
        return payload + b"}"


def _is_other(seen: Snapshot | None, snapshot: Snapshot | None) -> bool:
    """Whether step numbers restarted."""
    if seen is None or snapshot is None:
        return seen is not snapshot
    return snapshot.step < seen.step or snapshot.model != seen.model
