"""WaitingQueue: waiting requests, the next one first, and the orders of the queue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import ClassVar

from engine.api.knobs import Knobs
from engine.batch.plan import Request

Key = tuple[float, float]
Place = tuple[bool, Key, int]

# In the order `shortest`, waiting for `ageing` seconds outweighs this many prompt tokens.
_TOKENS_PER_AGE = 1000


class WaitingQueue(ABC):
    """Waiting requests in their order of admission.

    While the engine drains, preempted requests come first, because no other is admitted.

    Attributes:
        name: its value of the `order` knob.
        uses: knobs that act under this order only.
        leaves_slots: whether the last slots are reserved for users who hold fewer.
        barred: users whose requests get no slot now, except preempted ones.
    """

    name: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()
    leaves_slots: ClassVar[bool] = False

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self.barred: frozenset[str] = frozenset()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""

    @property
    def users(self) -> Mapping[str, Sized]:
        """Waiting requests by user, if the order distinguishes users."""
        return {}

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

    def admitted(self, request: Request) -> None:  # noqa: B027  # most orders do no accounting
        """Note that a request got its first slot; for orders that account for service."""

    def served(self, requests: Iterable[Request]) -> None:  # noqa: B027
        """Note that each of these gets an output token; for orders that account for service."""


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


class Fcfs(SortedQueue):
    """First come, first served, whatever the priority; a preempted request keeps its arrival."""

    name = "fcfs"

    def key(self, request: Request) -> Key:
        return (0.0, 0.0)


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


class Shortest(SortedQueue):
    """Shortest prompt first. Preempted requests precede all others, because they lost their blocks.

    With ageing, waiting for `ageing` seconds is worth 1,000 tokens, so that nothing starves.
    """

    name = "shortest"
    uses = frozenset({"ageing"})

    def key(self, request: Request) -> Key:
        if request.num_preemptions:
            return (0.0, 0.0)
        ageing = self._knobs.ageing
        aged = request.timings.arrival * _TOKENS_PER_AGE / ageing if ageing else 0.0
        return (1.0, request.num_prompt_tokens + aged)
