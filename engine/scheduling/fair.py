"""Fair: the order that shares the engine between users by the tokens they were served."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from engine.knobs import Knobs, parse_weights
from engine.request import Request
from engine.scheduling.queue import Fcfs, WaitingQueue

# What a token costs (VTC, section 3.1): an output token takes a step of its own.
PROMPT_TOKEN = 1.0
OUTPUT_TOKEN = 2.0

_REMEMBERED = 1000


class Fair(WaitingQueue):
    """Virtual token counters: next is the oldest request of the user served least.

    Sheng et al., OSDI'24, Algorithm 2. A prompt is charged when its request is first admitted, each
    output token when it is planned, both over the user's weight. A user who comes back is lifted to
    the least counter of those who wait, so that idleness saves up no credit. While two users wait
    all the time, what they were served differs by at most
    2 * max(PROMPT_TOKEN * longest prompt, OUTPUT_TOKEN * largest batch in tokens) (Theorem 4.4).

    Preempted requests go first: their user was charged for the prompt already.
    """

    name = "fair"
    uses = frozenset({"user_weights"})

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self._weights = parse_weights(knobs.user_weights)
        self._preempted = Fcfs(knobs)
        self._users: dict[str, Fcfs] = {}
        self._served: dict[str, float] = {}
        self._last_left = ""

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._users.values()))

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        for queue in self._users.values():
            yield from queue

    def push(self, request: Request) -> None:
        if request.num_preemptions:
            self._preempted.push(request)
            return
        user = request.origin.user
        queue = self._users.get(user)
        if queue is None:
            self._prune()
            self._served[user] = max(self._served.get(user, 0.0), self._floor())
            queue = self._users[user] = Fcfs(self._knobs)
        queue.push(request)

    def remove(self, request: Request) -> None:
        if request.num_preemptions:
            self._preempted.remove(request)
            return
        user = request.origin.user
        queue = self._users[user]
        queue.remove(request)
        if not len(queue):
            del self._users[user]
            self._last_left = user

    def first(self) -> Request | None:
        if len(self._preempted) or not self._users:
            return self._preempted.first()
        # Of equals the one whose request came first.
        return min(
            (queue.first() for queue in self._users.values()),
            key=lambda r: (self._served[r.origin.user], r.ordinal) if r else (0.0, 0),
        )

    def head(self, count: int) -> list[Request]:
        """The next `count`, if nothing but their prompts is served meanwhile."""
        if count < 1:
            return []
        requests = self._preempted.head(count)
        heap = []
        for user, queue in self._users.items():
            waiting = iter(queue.head(count))
            request = next(waiting)
            heap.append((self._served[user], request.ordinal, request, waiting))
        heapq.heapify(heap)
        while heap and len(requests) < count:
            served, _ordinal, request, waiting = heapq.heappop(heap)
            requests.append(request)
            following = next(waiting, None)
            if following is not None:
                served += PROMPT_TOKEN * request.num_prompt_tokens / self._weight(request)
                heapq.heappush(heap, (served, following.ordinal, following, waiting))
        return requests

    def admitted(self, request: Request) -> None:
        self._charge(request, PROMPT_TOKEN * request.num_prompt_tokens)

    def served(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._charge(request, OUTPUT_TOKEN)

    def resume(self, before: Fair) -> None:
        """Go on with the counters of a queue with other weights, once all that wait are here."""
        self._served = dict(before._served)
        self._last_left = before._last_left

    def _charge(self, request: Request, cost: float) -> None:
        user = request.origin.user
        served = self._served.get(user, self._floor()) + cost / self._weight(request)
        self._served[user] = served

    def _floor(self) -> float:
        """What a user who comes is lifted to."""
        last = self._served.get(self._last_left, 0.0)
        return min((self._served[user] for user in self._users), default=last)

    def _prune(self) -> None:
        """Forget users who are not here and would be lifted anyway: anybody may name a user."""
        if len(self._served) > 2 * len(self._users) + _REMEMBERED:
            floor = self._floor()
            self._served = {
                user: served
                for user, served in self._served.items()
                if user in self._users or user == self._last_left or served > floor
            }

    def _weight(self, request: Request) -> float:
        return self._weights.get(request.origin.user, 1.0)
