"""The quotas of users, by a clock of the test."""

from __future__ import annotations

import pytest

from app.gateway.faults import Fault
from app.gateway.quotas import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS, Quota, Quotas
from tests.support.clock import VirtualClock


def quotas(clock: VirtualClock, pace: float | None = None, **values: int) -> Quotas:
    return Quotas(Quota(**values), {"boss": Quota(requests=9)}, lambda: pace, clock)


def refusal(of: Quotas, user: str) -> Fault:
    with pytest.raises(Fault) as caught:
        of.check(user)
    return caught.value


def take(of: Quotas, user: str) -> None:
    of.check(user)
    of.opened(user)


def test_a_user_has_so_many_open_and_others_theirs() -> None:
    of = quotas(VirtualClock(), requests=2)
    for _ in range(2):
        take(of, "alice")
    fault = refusal(of, "alice")
    assert (fault.code, fault.reason, fault.retryable) == (429, "user over quota", True)
    assert "'alice' has 2 unfinished requests; at most 2" in fault.message
    for _ in range(9):
        take(of, "boss")
    of.ended("alice")
    take(of, "alice")


def test_a_minute_refills_the_bucket_and_no_more() -> None:
    clock = VirtualClock()
    of = quotas(clock, requests=100, per_minute=6)
    for _ in range(2):
        for _ in range(6):
            take(of, "alice")
        fault = refusal(of, "alice")
        assert fault.reason == "user over rate"
        assert fault.retry_after_ms == 10_000
        clock.advance(9.9)
        assert refusal(of, "alice").retry_after_ms == 1000 * MIN_RETRY_SECONDS
        clock.advance(600.0)


def test_whoever_comes_when_told_to_gets_in() -> None:
    clock = VirtualClock()
    of = quotas(clock, requests=10_000, per_minute=7)
    for _ in range(7):
        take(of, "alice")
    for _ in range(100):
        wait = refusal(of, "alice").retry_after_ms
        assert wait is not None
        clock.advance(wait / 1000.0)
        take(of, "alice")


@pytest.mark.parametrize(
    ("pace", "milliseconds"),
    [(None, 1000), (0.001, 1000 * MIN_RETRY_SECONDS), (3.0, 3000), (1e6, 1000 * MAX_RETRY_SECONDS)],
)
def test_when_to_ask_again_is_when_one_is_likely_to_end(
    pace: float | None, milliseconds: float
) -> None:
    of = quotas(VirtualClock(), pace, requests=1)
    take(of, "alice")
    assert refusal(of, "alice").retry_after_ms == milliseconds


def test_priority_is_the_users_at_most() -> None:
    of = quotas(VirtualClock(), max_priority=3)
    assert [of.priority("alice", wanted) for wanted in (-5, 3, 4)] == [-5, 3, 3]


def test_users_who_only_named_themselves_are_forgotten() -> None:
    clock = VirtualClock()
    of = quotas(clock, requests=1, per_minute=2)
    take(of, "open")
    take(of, "spent")
    of.ended("spent")
    take(of, "spent")
    of.ended("spent")
    for number in range(20_000):
        of.check(f"user-{number}")
    assert len(of._users) <= 2000
    assert refusal(of, "open").reason == "user over quota"
    assert refusal(of, "spent").reason == "user over rate"


def test_no_more_of_a_user_is_read_than_is_theirs() -> None:
    clock = VirtualClock()
    quotas = Quotas(Quota(), {}, lambda: None, clock)
    for _ in range(32):
        quotas.read("alice", 1 << 18)
    with pytest.raises(Fault, match="user 'alice' sends more than 524288 bytes a second") as caught:
        quotas.read("alice", 1 << 18)
    assert (caught.value.code, caught.value.retry_after_ms) == (429, 500)
    quotas.read("bob", 1 << 18)
    clock.advance(0.5)
    quotas.read("alice", 1 << 18)
    clock.advance(3600.0)
    for _ in range(32):
        quotas.read("alice", 1 << 18)
    with pytest.raises(Fault):
        quotas.read("alice", 1)
