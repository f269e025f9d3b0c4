"""Which prompts are kept: as many as any choice could have in time."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.triage import Job, on_time
from tests.support.harness import make_request


def jobs_of(pairs: list[tuple[int, int]]) -> list[Job]:
    """Jobs of (deadline, tokens)."""
    return [
        Job(deadline, number, tokens, make_request(number, [1]))
        for number, (deadline, tokens) in enumerate(pairs)
    ]


def all_in_time(jobs: list[Job], now: float, rate: float) -> bool:
    ends = now
    for job in sorted(jobs):
        ends += job.tokens / rate
        if ends > job.deadline:
            return False
    return True


def test_the_longest_makes_way() -> None:
    """At 10 tokens a second the first two end at 4 and 6; the third would at 9, one late."""
    jobs = jobs_of([(4, 40), (6, 20), (8, 30)])
    assert [job.ordinal for job in on_time(jobs, 0.0, 10.0)] == [1, 2]


def test_nothing_is_late_without_a_rate() -> None:
    jobs = jobs_of([(9, 10**6), (2, 10**6)])
    assert [job.ordinal for job in on_time(jobs, 0.0, float("inf"))] == [1, 0]


@given(
    pairs=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), max_size=8),
    now=st.integers(0, 10),
    rate=st.sampled_from((1.0, 2.0, 4.0)),
)
def test_no_choice_has_more_in_time(pairs: list[tuple[int, int]], now: int, rate: float) -> None:
    jobs = jobs_of(pairs)
    kept = on_time(jobs, now, rate)
    assert kept == sorted(kept)
    assert all_in_time(kept, now, rate)
    more = combinations(jobs, len(kept) + 1)
    assert not any(all_in_time(list(choice), now, rate) for choice in more)
