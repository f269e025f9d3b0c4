"""WaitingQueue: waiting requests, the next one first, and the default order of the queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import ClassVar

from engine.api.knobs import Knobs
from engine.batch.plan import Request

Key = tuple[float, float]
Place = tuple[bool, Key, int]


class WaitingQueue(ABC):
    """Waiting requests in their order of admission.

    While the engine drains, preempted requests come first, because no other is admitted.

    Attributes:
        name: its value of the `order` knob.
        uses: knobs that act under this order only.
    """

    name: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""

    @abstractmethod
    def push(self, request: Request) -> None: ...

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Remove a waiting request."""

    def set_priority(self, request: Request, priority: int) -> None:
        """Change the priority of a waiting request; most orders ignore it."""
        request.priority = priority

    @abstractmethod
    def first(self) -> Request | None:
        """The next request; None if none waits."""

    @abstractmethod
    def head(self, count: int) -> list[Request]:
        """The next `count` requests, in order."""

    # For orders that account for service or reserve slots; the others ignore these.

    def step_begins(  # noqa: B027
        self, running: Sequence[Request], free: int, slots: int, now: float
    ) -> None:
        """Note the requests that hold slots, and how many slots of all are free, before a step."""

    def admitted(self, request: Request, free: int) -> None:  # noqa: B027
        """Note that a request got a slot, and how many are free now."""

    def preempted(self, request: Request, free: int) -> None:  # noqa: B027
        """Note that a request lost its slot, and how many are free now."""

    def served(self, requests: Iterable[Request]) -> None:  # noqa: B027
        """Note that each of these gets an output token."""

    def is_barred(self, request: Request) -> bool:
        """Whether the free slots are reserved for others than this waiting request."""
        return False


class SortedQueue(WaitingQueue):
    """A queue in which the order of two requests never changes by itself while both wait.

    It is a sorted list whose head is an index: removing the first request costs nothing, and an
    arrival is appended. Inserting or removing in the middle takes 0.5 ms among 1,000,000 (the
    maximum of `queue_limit`) and a microsecond among 1,000.
    """

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self._entries: list[tuple[Place, Request]] = []
        self._start = 0

    @abstractmethod
    def key(self, request: Request) -> Key:
        """The smaller key goes first; of equals, the earlier arrival does."""

    def __len__(self) -> int:
        return len(self._entries) - self._start

    def __iter__(self) -> Iterator[Request]:
        return (request for _place, request in islice(self._entries, self._start, None))

    def push(self, request: Request) -> None:
        entry = (self._place(request), request)
        at = bisect_left(self._entries, entry[0], self._start, key=_place_of)
        if at == self._start > 0:
            self._start -= 1
            self._entries[self._start] = entry
        else:
            self._entries.insert(at, entry)

    def remove(self, request: Request) -> None:
        at = bisect_left(self._entries, self._place(request), self._start, key=_place_of)
        if at > self._start:
            del self._entries[at]
            return
        self._start += 1
        if self._start * 2 > len(self._entries):
            del self._entries[: self._start]
            self._start = 0

    def first(self) -> Request | None:
        return self._entries[self._start][1] if len(self) else None

    def head(self, count: int) -> list[Request]:
        return [request for _place, request in self._entries[self._start : self._start + count]]

    def _place(self, request: Request) -> Place:
        comes_last = self._knobs.draining and not request.num_preemptions
        return (comes_last, self.key(request), request.ordinal)


def _place_of(entry: tuple[Place, Request]) -> Place:
    return entry[0]


class Priority(SortedQueue):
    """Larger priorities first, and first come, first served within one.

    With ageing, waiting for `ageing` seconds is worth one level, so that nothing starves. All
    requests age alike, so the order of two never changes: it is the order of arrival - priority *
    ageing.
    """

    name = "priority"
    uses = frozenset({"ageing"})

    def set_priority(self, request: Request, priority: int) -> None:
        self.remove(request)
        request.priority = priority
        self.push(request)

    def key(self, request: Request) -> Key:
        if self._knobs.ageing:
            return (request.timings.arrival - request.priority * self._knobs.ageing, 0.0)
        return (-request.priority, 0.0)
