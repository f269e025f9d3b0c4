"""How often the screen looks at the engine, and what keeps it from taking the engine's cores."""

from __future__ import annotations

from dataclasses import fields

import pytest

from app.screens.feeds.cadence import (
    ATTENDED_SECONDS,
    MEASURED_SECONDS,
    MOST,
    SHARE,
    UNSEEN,
    Cadence,
    Thrift,
)
from tests.support.clock import VirtualClock

CORES = 2


class Screen:
    """An interface that takes `cost` seconds of the processor for a look, each 0.2 s or stretched.

    Attributes:
        looks: so far.
    """

    def __init__(self, cost: float) -> None:
        self.cost = cost
        self.clock, self.cpu = VirtualClock(), VirtualClock(0.0)
        self.thrift = Thrift(CORES, self.clock, self.cpu)
        self.looks = 0

    def run(self, seconds: float, *, computing: bool = True) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.thrift.measure(computing=computing)
            self.cpu.advance(self.cost)
            self.clock.advance(0.2 * self.thrift.stretch)
            self.looks += 1

    def share(self, seconds: float) -> float:
        """Of the cores, what it takes in the seconds to come."""
        then, before = self.clock.now, self.cpu.now
        self.run(seconds)
        return (self.cpu.now - before) / (self.clock.now - then) / CORES


def test_the_screen_looks_half_as_often_where_it_shares_the_cores() -> None:
    usual, shared = Cadence.fit(on_cpu=False, seen=True), Cadence.fit(on_cpu=True, seen=True)
    assert shared.stream == 2 * usual.stream == 0.2
    assert Cadence.fit(on_cpu=False, seen=False).engine > usual.engine


def test_a_stretched_screen_looks_more_rarely_but_for_what_is_awaited() -> None:
    usual = Cadence.fit(on_cpu=True, seen=True)
    stretched = Cadence.fit(on_cpu=True, seen=True, stretch=2.0)
    assert stretched.awaited == usual.awaited
    names = {field.name for field in fields(Cadence)} - {"awaited", "table"}
    assert [getattr(stretched, n) for n in names] == [2 * getattr(usual, n) for n in names]


def test_figures_are_not_older_than_the_chart_beside_them_on_a_stretched_screen() -> None:
    stretched = Cadence.fit(on_cpu=True, seen=True, stretch=MOST)
    assert stretched.table <= stretched.engine


def test_streams_come_twice_a_second_at_least() -> None:
    assert Cadence.fit(on_cpu=True, seen=True, stretch=MOST).stream <= 0.5


def test_a_screen_that_nobody_looks_at_is_not_made_slower_still() -> None:
    assert MOST <= UNSEEN
    slow = Cadence.fit(on_cpu=True, seen=False, stretch=MOST)
    assert slow == Cadence.fit(on_cpu=True, seen=False)


@pytest.mark.parametrize("cost", [0.001, 0.011])
def test_what_takes_little_is_not_stretched(cost: float) -> None:
    assert cost / 0.2 / CORES < SHARE
    screen = Screen(cost)
    screen.run(10.0)
    assert screen.thrift.stretch == 1.0


@pytest.mark.parametrize("cost", [0.013, 0.02, 0.028])
def test_what_takes_more_is_stretched_until_it_takes_its_share(cost: float) -> None:
    screen = Screen(cost)
    screen.run(4 * MEASURED_SECONDS)
    assert screen.thrift.stretch == pytest.approx(cost / 0.2 / CORES / SHARE)
    assert screen.share(10.0) == pytest.approx(SHARE, rel=0.05)


def test_it_never_becomes_slower_than_a_person_bears() -> None:
    screen = Screen(0.5)
    screen.run(10.0)
    assert screen.thrift.stretch == MOST


def test_it_is_as_fast_as_before_when_the_load_has_gone() -> None:
    screen = Screen(0.028)
    screen.run(4.0)
    screen.cost = 0.001
    screen.run(2 * MEASURED_SECONDS)
    assert screen.thrift.stretch == 1.0


def test_beside_an_idle_engine_nothing_is_stretched() -> None:
    screen = Screen(0.028)
    screen.run(4.0)
    assert screen.thrift.stretch > 1.0
    screen.thrift.measure(computing=False)
    assert screen.thrift.stretch == 1.0
    # What was taken while it was idle says nothing about a step.
    screen.run(10.0, computing=False)
    screen.cost = 0.001
    screen.run(MEASURED_SECONDS + 0.2)
    assert screen.thrift.stretch == 1.0


def test_after_a_key_it_is_as_fast_as_usual_and_then_goes_back() -> None:
    screen = Screen(0.028)
    screen.run(4.0)
    stretched = screen.thrift.stretch
    screen.thrift.attend()
    assert screen.thrift.stretch == 1.0
    screen.run(ATTENDED_SECONDS)
    # What it took meanwhile was asked for.
    assert screen.thrift.stretch == pytest.approx(stretched)
    screen.run(4 * MEASURED_SECONDS)
    assert screen.thrift.stretch == pytest.approx(stretched)


def test_figures_that_only_age_are_looked_at_more_rarely() -> None:
    usual = Cadence.fit(on_cpu=False, seen=True)
    quiet = Cadence.fit(on_cpu=False, seen=True, quiet=True)
    assert quiet.table > usual.table
    assert quiet.devices > usual.devices
    # What begins is seen as soon as ever.
    assert (quiet.idle, quiet.engine) == (usual.idle, usual.engine)
