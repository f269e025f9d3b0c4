"""WaitingQueue: requests that wait, the next one first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engine.request import Request


class WaitingQueue:
    """First come, first served within a priority; larger priorities first.

    A preempted request keeps its arrival and so returns to the head of its priority. Removal is
    lazy: an entry in the middle of the heap stays until it surfaces, so that every call but `head`
    is O(log n).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._waiting: set[Request] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no order."""
        return iter(self._waiting)

    def push(self, request: Request) -> None:
        self._waiting.add(request)
        heapq.heappush(self._heap, (-request.priority, request.ordinal, request))

    def first(self) -> Request | None:
        """The one that is next."""
        while self._heap and self._heap[0][2] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, request: Request) -> None:
        self._waiting.discard(request)
        if self._heap and self._heap[0][2] is request:
            heapq.heappop(self._heap)

    def head(self, count: int) -> list[Request]:
        """The next `count`, in order. O(n log count): for a reader, not for a step."""
        entries = heapq.nsmallest(count, (e for e in self._heap if e[2] in self._waiting))
        return [request for _priority, _ordinal, request in entries]
