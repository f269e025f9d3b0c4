"""Queues whose order two requests never change: by arrival, priority or length; with ageing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.knobs import Knobs
from engine.api.lifecycle import RequestTimings
from engine.api.origin import Origin
from engine.batch.plan import Request
from engine.scheduling import orders
from engine.scheduling.orders import Fcfs, Shortest
from engine.scheduling.queue import Priority, SortedQueue
from tests.support.harness import CoreHarness, make_request

ORDERS = [Fcfs, Priority, Shortest]


def make_queue(order: type[SortedQueue], ageing: float = 0.0) -> SortedQueue:
    return order(Knobs(ageing=ageing))


def arrived(ordinal: int, time: float, prompt: int = 1, **fields: object) -> Request:
    return make_request(ordinal, [1] * prompt, timings=RequestTimings(time), **fields)


class TestPriority:
    @pytest.mark.parametrize("ageing", [0.0, 0.05, 0.3])
    def test_nothing_starves_among_endless_urgent_arrivals(self, ageing: float) -> None:
        """One slot, a step of 0.01 s, and an urgent request each step, so that one always waits.

        Those that arrive within (3 - 0) * ageing of the low one go before it, and no others. Each
        takes one step: that long it waits, give or take the one that arrives just then.
        """
        engine = CoreHarness(max_num_seqs=1, ageing=ageing)
        engine.submit("low", [2], 1)
        for i in range(150):
            engine.submit(f"r{i}", [3], 1, priority=3)
            engine.step()
            if "low" in engine.ends:
                break
        if not ageing:
            assert "low" not in engine.ends
            return
        queue = engine.ends["low"].timings.queue
        assert queue is not None
        assert queue == pytest.approx(3 * ageing, abs=0.011)


class TestShortest:
    def test_a_long_prompt_does_not_starve(self) -> None:
        """101 tokens against 1: what arrives 100 / 1000 * ageing later goes behind it."""
        engine = CoreHarness(
            max_num_seqs=1, max_num_batched_tokens=128, order="shortest", ageing=2.0
        )
        engine.submit("long", list(range(101)), 1)
        for i in range(100):
            engine.submit(f"r{i}", [3], 1)
            engine.step()
            if "long" in engine.ends:
                break
        queue = engine.ends["long"].timings.queue
        assert queue is not None
        assert queue == pytest.approx(0.2, abs=0.011)


@given(
    st.sampled_from(ORDERS),
    st.sampled_from((0.0, 1.0, 30.0)),
    st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(-2, 2)), max_size=60),
)
def test_against_a_sorted_list(
    order: type[SortedQueue], ageing: float, actions: list[tuple[bool, int, int]]
) -> None:
    """Whatever comes and goes, at either end and in between."""
    queue = make_queue(order, ageing)
    waiting: list[Request] = []
    known: dict[int, Request] = {}
    for push, ordinal, number in actions:
        fields = {"priority": number, "prompt": 3 - number}
        request = known.setdefault(ordinal, arrived(ordinal, float(ordinal), **fields))
        if push and request not in waiting:
            waiting.append(request)
            queue.push(request)
        elif not push and request in waiting:
            waiting.remove(request)
            queue.remove(request)
            request.num_preemptions += 1  # it was admitted and comes back without its blocks
        waiting.sort(key=lambda r: (_rank(order, ageing, r), r.ordinal))
        assert queue.head(100) == waiting
        assert sorted(queue, key=waiting.index) == waiting
        assert queue.head(2) == waiting[:2]
        assert queue.first() is (waiting[0] if waiting else None)
        assert len(queue) == len(waiting)


@given(
    order=st.sampled_from(tuple(orders.ORDERS)),
    ageing=st.sampled_from((0.0, 5.0)),
    draining=st.booleans(),
    requests=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(-2, 2), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    served=st.integers(0, 5),
    changes=st.lists(st.tuples(st.integers(0, 29), st.integers(-3, 3)), max_size=20),
)
def test_after_changes_of_priority_the_order_is_that_of_a_queue_built_anew(
    order: str,
    ageing: float,
    draining: bool,
    requests: list[tuple[str, int, int, bool]],
    served: int,
    changes: list[tuple[int, int]],
) -> None:
    """Preempted ones among them; and what users were served is not forgotten by it."""
    knobs = Knobs(order=order, ageing=ageing, draining=draining)
    queue = orders.ORDERS[order](knobs)
    waiting: list[Request] = []
    for i, (user, prompt, priority, preempted) in enumerate(requests):
        fields = {"priority": priority, "num_preemptions": int(preempted)}
        waiting.append(arrived(i, float(i), prompt, origin=Origin(user=user), **fields))
        queue.push(waiting[-1])
    for _ in range(min(served, len(waiting) - 1)):
        first = queue.first()
        assert first is not None
        queue.remove(first)
        queue.admitted(first, 0)
        waiting.remove(first)
    for which, priority in changes:
        request = waiting[which % len(waiting)]
        before = queue.head(100)
        queue.set_priority(request, priority)
        assert request.priority == priority
        if order != "priority":
            assert queue.head(100) == before
    assert queue.head(100) == orders.reorder(knobs, queue).head(100)
    assert sorted(queue, key=waiting.index) == waiting
    for request in queue.head(100):
        assert queue.first() is request
        if order == "fair":
            break  # Who is next there depends on what is served meanwhile.
        queue.remove(request)


def _rank(order: type[SortedQueue], ageing: float, request: Request) -> tuple[float, ...]:
    """The place of a request, from what the order promises."""
    arrival = request.timings.arrival
    if order is Priority:
        return (arrival - request.priority * ageing,) if ageing else (-request.priority,)
    if order is Shortest:
        if request.num_preemptions:
            return (0.0,)
        return (1.0, request.num_prompt_tokens + (arrival / ageing * 1000 if ageing else 0.0))
    return ()
