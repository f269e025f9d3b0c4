"""Room: how many requests of batches the engine has, so that nobody else waits for them."""

from __future__ import annotations

import asyncio

from app.gateway.admission import Admission
from app.gateway.faults import Fault
from app.gateway.http.batches.pause import pause
from app.gateway.http.exchange import Exchange
from app.gateway.http.exchanges import Exchanges
from engine.api.client import EngineClient
from engine.api.lifecycle import RequestState
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase
from engine.api.waiting import Cause

# Of the sequences that may run at once, so large a part waits at most, that whatever ends makes
# place for one that is there already.
WAITING_PART = 8
# How often it is looked whether there is room: while the engine has requests, whose first tokens
# come without a word, and while it has none.
BUSY_SECONDS = 0.02
IDLE_SECONDS = 0.25
_WAITS = (RequestState.WAITING, RequestState.PREEMPTED)
# What a request ends for those that wait.
_PLACE = (Cause.SLOT, Cause.BLOCKS)

# The reason of the fault of a request that was ended for somebody else's.
GAVE_WAY = "gave way"


class Room:
    """Has few requests wait in the engine, none while others wait, and gives their places to those
    who wait for one. So they are last in every order of the queue. It is used on one event loop.

    Args:
        admission: says whether anything is taken in.
        exchanges: the requests of batches.
    """

    def __init__(self, client: EngineClient, admission: Admission, exchanges: Exchanges) -> None:
        self._client = client
        self._admission = admission
        self._exchanges = exchanges
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._taken = 0
        self._others_wait = False
        self._most_waiting = 1

    async def opened(self) -> None:
        """Wait until a model is there and requests are taken in."""
        while not self._is_open():
            await asyncio.sleep(IDLE_SECONDS)

    async def take(self) -> None:
        """Wait until the engine may have another request; those who wait have it in turn."""
        async with self._turn:
            while not self._has_room():
                self._changed.clear()
                await pause(self._changed, BUSY_SECONDS if self._taken else IDLE_SECONDS)
            self._taken += 1

    def give(self) -> None:
        """The engine has the request no more."""
        self._taken -= 1
        self._changed.set()

    def look(self, snapshot: Snapshot | None) -> None:
        """See who waits in the engine, and make place for those who are not of a batch."""
        if snapshot is None:
            return
        slots = next(one.effective for one in snapshot.knobs if one.name == "max_num_seqs")
        assert isinstance(slots, int)
        self._most_waiting = max(1, slots // WAITING_PART)
        ours = {one.request_id for exchange in self._exchanges for one in exchange.submissions}
        others = [
            one for one in snapshot.requests if one.state in _WAITS and one.request_id not in ours
        ]
        self._others_wait = bool(others)
        if others and snapshot.head_wait is not None and snapshot.head_wait.cause in _PLACE:
            self._give_way(len(others))

    def _give_way(self, count: int) -> None:
        """End all requests that have nothing yet, and so many of the others: what has least, for
        which least was done."""
        began = sorted((one for one in self._exchanges if one.started), key=_num_tokens)
        for exchange in (*(one for one in self._exchanges if not one.started), *began[:count]):
            exchange.cancel(Fault(503, "another request needs its place", reason=GAVE_WAY))

    def _has_room(self) -> bool:
        started = len(self._exchanges) - self._exchanges.num_waiting
        return (
            self._taken - started < self._most_waiting and not self._others_wait and self._is_open()
        )

    def _is_open(self) -> bool:
        try:
            self._admission.check_open()
        except Fault:
            return False
        return self._client.status().phase is EnginePhase.READY


def _num_tokens(exchange: Exchange) -> int:
    return sum(stream.num_output_tokens for stream in exchange.streams)
