"""Room: limits the batch requests in the engine, so that other requests never wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter

from app.gateway.admission import Admission
from app.gateway.faults import Fault
from app.gateway.http.exchange import Exchange
from app.gateway.http.exchanges import Exchanges
from app.gateway.loop_thread import pause
from engine.api.client import EngineClient
from engine.api.lifecycle import RequestState
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase
from engine.api.waiting import Cause, Wait
from engine.core.admission import MAX_PRIORITY

# Batch requests without a first token take at most 1/WAITING_PART of the sequences that may run at
# once: as many as fit into a few steps. And 1/LEFT_PART of them stays free for other requests,
# which then need not wait.
WAITING_PART = 8
LEFT_PART = 16
# Seconds between checks for a free slot: while the engine has batch requests, whose first tokens
# come without notice, and while it has none.
BUSY_SECONDS = 0.02
IDLE_SECONDS = 0.25
# Seconds between checks whether other requests wait.
POLL_SECONDS = 0.05
_WAITS = (RequestState.WAITING, RequestState.PREEMPTED)
# The causes of waiting that end when a request ends.
_PLACE = (Cause.SLOT, Cause.BLOCKS)

# The fault reason of a batch request that was ended in favour of another request.
EVICTED = "gave way"


class Room:
    """Reserves some of the engine's slots for other requests, lets few batch requests wait, none
    while others wait, and evicts batch requests in their favour. So batch requests are last in
    every order of the queue. It is used on one event loop.

    Args:
        admission: says whether requests are accepted.
        exchanges: the batch requests.
    """

    def __init__(self, client: EngineClient, admission: Admission, exchanges: Exchanges) -> None:
        self._client = client
        self._admission = admission
        self._exchanges = exchanges
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._num_slots = 0
        self._others_wait = False
        self._most = self._most_waiting = 1
        self._step = self._seen = 0
        self._head_wait: Wait | None = None

    async def opened(self) -> None:
        """Wait until a model is loaded and requests are accepted."""
        while not self._is_open():
            await asyncio.sleep(IDLE_SECONDS)

    async def acquire(self) -> None:
        """Wait for a slot for another request; waiters get slots in order of arrival."""
        async with self._turn:
            while not self._has_room():
                self._changed.clear()
                await pause(self._changed, BUSY_SECONDS if self._num_slots else IDLE_SECONDS)
            self._num_slots += 1

    def release(self) -> None:
        """Release the slot of a request that has ended."""
        self._num_slots -= 1
        self._changed.set()

    async def run(self) -> None:
        """Watch for other requests that wait, until cancelled. Step records cost the engine
        nothing; a snapshot, which identifies the waiting ones, is requested once there are any."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if not len(self._exchanges):
                continue
            if records := self._client.step_records(self._step):
                self._step, self._head_wait = records[-1].step, records[-1].head_wait
                self._others_wait = self._others_wait and self._head_wait is not None
            is_short = self._head_wait is not None and self._head_wait.cause in _PLACE
            snapshot = self._client.snapshot() if is_short else None
            # This snapshot answers an earlier call; a newer one follows.
            if snapshot is not None and snapshot.step != self._seen:
                self.update(snapshot)

    def update(self, snapshot: Snapshot | None) -> None:
        """Count the engine's other requests, and evict batch requests if any of them wait for a
        slot."""
        if snapshot is None:
            return
        self._seen = self._step = snapshot.step
        slots = next(one.effective for one in snapshot.knobs if one.name == "max_num_seqs")
        assert isinstance(slots, int)
        # Not by the ids of batch requests in flight: some that the snapshot has may have ended
        # since.
        others = Counter(one.state for one in snapshot.requests if one.priority > -MAX_PRIORITY)
        left = max(1, slots // LEFT_PART) if slots > 1 else 0
        self._most = slots - left - others[RequestState.RUNNING]
        self._most_waiting = max(1, slots // WAITING_PART)
        waiting = sum(others[state] for state in _WAITS)
        self._others_wait = bool(waiting)
        if waiting and snapshot.head_wait is not None and snapshot.head_wait.cause in _PLACE:
            self._evict(waiting)

    def _evict(self, count: int) -> None:
        """End all batch requests without a token, and `count` of the others: those with the fewest
        tokens, which lose the least work."""
        began = sorted((one for one in self._exchanges if one.started), key=_num_tokens)
        for exchange in (*(one for one in self._exchanges if not one.started), *began[:count]):
            exchange.cancel(Fault(503, "another request needs its slot", reason=EVICTED))

    def _has_room(self) -> bool:
        exchanges = self._exchanges
        started = len(exchanges) - exchanges.num_waiting
        return (
            self._num_slots - len(exchanges) + exchanges.num_replies < self._most
            and self._num_slots - started < self._most_waiting
            and not self._others_wait
            and self._is_open()
        )

    def _is_open(self) -> bool:
        try:
            self._admission.check_open()
        except Fault:
            return False
        return self._client.status().phase is EnginePhase.READY


def _num_tokens(exchange: Exchange) -> int:
    return sum(stream.num_output_tokens for stream in exchange.streams)
