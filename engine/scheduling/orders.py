"""The orders of the queue, by name: all but the default, which is `Priority`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from engine.api.knobs import Knobs, parse_weights
from engine.api.lifecycle import RequestState
from engine.batch.plan import Request
from engine.scheduling.queue import Key, Priority, SortedQueue, WaitingQueue
from engine.scheduling.shares import Shares

# In the order `shortest`, waiting for `ageing` seconds outweighs this many prompt tokens.
_TOKENS_PER_AGE = 1000

# Cost of a token (VTC, section 3.1). An output token costs more: it takes a step of its own.
PROMPT_TOKEN = 1.0
OUTPUT_TOKEN = 2.0

_REMEMBERED = 1000

# A user's virtual counter, the ordinal of their first request, and their name.
_Rank = tuple[float, int, str]


class Fcfs(SortedQueue):
    """First come, first served, whatever the priority; a preempted request keeps its arrival."""

    name = "fcfs"

    def key(self, request: Request) -> Key:
        return (0.0, 0.0)


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


class Fair(WaitingQueue):
    """Virtual token counters: next is the oldest request of the user served least.

    This is Algorithm 2 of Sheng et al., OSDI'24. A prompt is charged when its request is first
    admitted, and each output token when it is planned. Both are divided by the user's weight. The
    counter of a user who comes back is raised to the least of those who wait, so that idle users
    save up no credit. While two users wait all the time, their counters differ by at most 2 *
    max(PROMPT_TOKEN * longest prompt, OUTPUT_TOKEN * largest batch in tokens) (Theorem 4.4).

    Preempted requests go first, because their user was already charged for the prompt.

    A reply holds its slot to its end, however large its user's counter grows. So the last slots are
    reserved for users who hold fewer (`Shares`): 128 long replies of one user kept a short one of
    another waiting for 35 s.
    """

    name = "fair"
    uses = frozenset({"user_weights"})

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self._weights = parse_weights(knobs.user_weights)
        self._preempted = Fcfs(knobs)
        self._users: dict[str, Fcfs] = {}
        self._served: dict[str, float] = {}
        # This heap has at least one rank for each waiting user. Ranks only grow, so an outdated
        # rank is too small, and is corrected when it reaches the top.
        self._ranks: list[_Rank] = []
        self._num_waiting = 0
        self._last_left = ""
        self._shares = Shares()

    def __len__(self) -> int:
        return len(self._preempted) + self._num_waiting

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
            heapq.heappush(self._ranks, (self._served[user], request.ordinal, user))
        queue.push(request)
        self._num_waiting += 1

    def remove(self, request: Request) -> None:
        if request.num_preemptions:
            self._preempted.remove(request)
            return
        user = request.origin.user
        queue = self._users[user]
        queue.remove(request)
        self._num_waiting -= 1
        if not len(queue):
            del self._users[user]
            self._last_left = user

    def first(self) -> Request | None:
        if len(self._preempted):
            return self._preempted.first()
        least = self._least(1 + len(self._shares.barred))
        if not least:
            return None
        user = next((user for *_, user in least if user not in self._shares.barred), least[0][2])
        return self._users[user].first()

    def head(self, count: int) -> list[Request]:
        """The next `count` requests, if only their prompts are charged meanwhile."""
        if count < 1:
            return []
        requests = self._preempted.head(count)
        heap = []
        for served, ordinal, user in self._least(count + len(self._shares.barred)):
            waiting = iter(self._users[user].head(count))
            heap.append((user in self._shares.barred, served, ordinal, next(waiting), waiting))
        heapq.heapify(heap)
        while heap and len(requests) < count:
            is_barred, served, _ordinal, request, waiting = heapq.heappop(heap)
            requests.append(request)
            following = next(waiting, None)
            if following is not None:
                served += PROMPT_TOKEN * request.num_prompt_tokens / self._weight(request)
                heapq.heappush(heap, (is_barred, served, following.ordinal, following, waiting))
        return requests

    def step_begins(self, running: Sequence[Request], free: int, slots: int, now: float) -> None:
        self._shares.see(Counter(one.origin.user for one in running), slots, self._users, now)
        self._shares.bar(free, self._users)

    def admitted(self, request: Request, free: int) -> None:
        if not request.num_preemptions:
            self._charge(request, PROMPT_TOKEN * request.num_prompt_tokens)
        self._shares.count(request.origin.user, 1)
        self._shares.bar(free, self._users)

    def preempted(self, request: Request, free: int) -> None:
        self._shares.count(request.origin.user, -1)
        self._shares.bar(free, self._users)

    def served(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._charge(request, OUTPUT_TOKEN)

    def is_barred(self, request: Request) -> bool:
        """Whether the free slots are reserved for users who hold fewer than this request's user. A
        preempted request is never barred, because it had a slot.
        """
        is_new = request.state is RequestState.WAITING
        return is_new and request.origin.user in self._shares.barred

    def resume(self, before: Fair) -> None:
        """Take over the counters of the previous queue. Its requests must have been pushed here."""
        self._served = dict(before._served)
        self._last_left = before._last_left
        self._shares = before._shares
        self._rank_all()

    def _charge(self, request: Request, cost: float) -> None:
        user = request.origin.user
        if user not in self._served:
            self._served[user] = self._floor()
        self._served[user] += cost / self._weight(request)

    def _floor(self) -> float:
        """The counter to which a returning user is raised."""
        least = self._least(1)
        return least[0][0] if least else self._served.get(self._last_left, 0.0)

    def _least(self, count: int) -> list[_Rank]:
        """The lowest `count` ranks, one for each user; of equals, the earliest request leads."""
        least: list[_Rank] = []
        while self._ranks and len(least) < count:
            rank = self._ranks[0]
            user = rank[2]
            current = self._rank(user) if user in self._users else None
            if current is not None and current != rank:
                heapq.heapreplace(self._ranks, current)
                continue
            heapq.heappop(self._ranks)
            # A user who came back has two ranks.
            if current is not None and rank not in least[-1:]:
                least.append(rank)
        for rank in least:
            heapq.heappush(self._ranks, rank)
        return least

    def _rank(self, user: str) -> _Rank:
        first = self._users[user].first()
        assert first is not None
        return (self._served[user], first.ordinal, user)

    def _rank_all(self) -> None:
        self._ranks = [self._rank(user) for user in self._users]
        heapq.heapify(self._ranks)

    def _prune(self) -> None:
        """Forget users who do not wait and would be raised anyway: anybody may make up users."""
        if len(self._served) > 2 * len(self._users) + _REMEMBERED:
            floor = self._floor()
            self._served = {
                user: served
                for user, served in self._served.items()
                if user in self._users or user == self._last_left or served > floor
            }
        if len(self._ranks) > 2 * len(self._users) + _REMEMBERED:
            self._rank_all()

    def _weight(self, request: Request) -> float:
        return self._weights.get(request.origin.user, 1.0)


ORDERS: dict[str, type[WaitingQueue]] = {
    order.name: order for order in (Priority, Fcfs, Shortest, Fair)
}


def reorder(knobs: Knobs, before: WaitingQueue) -> WaitingQueue:
    """Make the queue that the knobs ask for, with all requests of the previous one."""
    queue = ORDERS[knobs.order](knobs)
    # Requests are pushed by arrival, so that a fair order meets its users in that order.
    for request in sorted(before, key=lambda request: request.ordinal):
        queue.push(request)
    if isinstance(queue, Fair) and isinstance(before, Fair):
        queue.resume(before)
    return queue
