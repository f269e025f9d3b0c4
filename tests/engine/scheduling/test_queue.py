"""The waiting queue: priority, then arrival; whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.scheduling.queue import WaitingQueue
from tests.support.harness import make_request


def test_priority_then_arrival() -> None:
    queue = WaitingQueue()
    for ordinal, priority in enumerate([0, 2, 0, -1, 2]):
        queue.push(make_request(ordinal, [1], priority=priority))
    assert [r.ordinal for r in queue] == [1, 4, 0, 2, 3]
    assert [r.ordinal for r in queue.head(2)] == [1, 4]
    first = queue.first()
    assert first is not None
    assert first.ordinal == 1


def test_empty() -> None:
    queue = WaitingQueue()
    assert (queue.first(), queue.head(3), len(queue), list(queue)) == (None, [], 0, [])


def test_one_that_comes_back_takes_its_old_place() -> None:
    """Preempted, it waits before those that arrived later; also if it was not the head before."""
    queue = WaitingQueue()
    requests = [make_request(i, [1]) for i in range(3)]
    for request in requests:
        queue.push(request)
    for _ in range(2):
        queue.remove(requests[1])
        queue.push(requests[1])
    assert queue.head(9) == requests


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(-2, 2)), max_size=60))
def test_against_a_sorted_list(actions: list[tuple[bool, int, int]]) -> None:
    queue = WaitingQueue()
    waiting: list[Request] = []
    known: dict[int, Request] = {}
    for push, ordinal, priority in actions:
        request = known.setdefault(ordinal, make_request(ordinal, [1], priority=priority))
        if push and request not in waiting:
            waiting.append(request)
            queue.push(request)
        elif not push and request in waiting:
            waiting.remove(request)
            queue.remove(request)
        waiting.sort(key=lambda r: (-r.priority, r.ordinal))
        assert list(queue) == waiting == queue.head(100)
        assert queue.first() is (waiting[0] if waiting else None)
        assert len(queue) == len(waiting)
