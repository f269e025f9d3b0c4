"""Deadlines: when waiting requests must have left the queue."""

from __future__ import annotations

import heapq

from engine.api.lifecycle import RequestState
from engine.batch.request import Request


class Deadlines:
    """Requests whose deadline has not passed, by deadline."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next(self) -> float | None:
        """The earliest deadline of a request that still waits."""
        while self._entries and not _is_queued(self._entries[0][2]):
            heapq.heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def watch(self, request: Request, num_unfinished: int) -> None:
        """Add a request with a deadline.

        The entry of a request that left the queue would stay until its deadline, which may be far
        off. When there are more than twice as many entries as unfinished requests, all such entries
        are dropped.
        """
        assert request.deadline is not None
        if len(self._entries) > 2 * num_unfinished:
            self._entries = [entry for entry in self._entries if _is_queued(entry[2])]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (request.deadline, request.ordinal, request))

    def take_passed(self, now: float) -> list[Request]:
        """Remove and return the waiting requests whose deadline has passed."""
        passed = []
        while (deadline := self.next) is not None and deadline <= now:
            passed.append(heapq.heappop(self._entries)[2])
        return passed


def _is_queued(request: Request) -> bool:
    return request.state is RequestState.WAITING
