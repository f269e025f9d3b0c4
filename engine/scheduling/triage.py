"""Triage: selects the prompts that can still be in time, and their order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from engine.batch.plan import Request


class Job(NamedTuple):
    """A prompt to compute.

    Attributes:
        deadline: seconds on the engine's clock by which it must be computed.
        ordinal: the request's ordinal, which breaks ties.
        tokens: how many are still to compute.
    """

    deadline: float
    ordinal: int
    tokens: int
    request: Request


def on_time(jobs: Iterable[Job], now: float, rate: float) -> list[Job]:
    """The most jobs that can meet their deadlines one after the other, earliest deadline first.

    This is the algorithm of Moore and Hodgson (Moore, "An n job, one machine sequencing algorithm
    for minimizing the number of late jobs", Management Science 1968). Jobs are added in order of
    deadline, and whenever one would be late, the longest one so far is dropped.

    Args:
        rate: tokens a second, above 0.
    """
    taken: list[tuple[int, int]] = []
    given_up: set[int] = set()
    ordered = sorted(jobs)
    ends = now
    for job in ordered:
        heapq.heappush(taken, (-job.tokens, job.ordinal))
        ends += job.tokens / rate
        if ends > job.deadline:
            tokens, ordinal = heapq.heappop(taken)
            ends += tokens / rate
            given_up.add(ordinal)
    return [job for job in ordered if job.ordinal not in given_up]
