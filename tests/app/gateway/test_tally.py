"""The log of requests that no honest client sends, which a flood of them must not fill."""

from __future__ import annotations

import pytest

from app.gateway.faults import Fault
from app.gateway.tally import OTHERS, Tally
from app.gateway.view import Used
from engine.api.stream import Usage
from tests.support.clock import VirtualClock

WRONG = Fault(401, "the API key is not known here")


def test_a_source_has_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    tally = Tally(clock)
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"):
        tally.denied(WRONG, address)
    wrong = "is refused: the API key is not known here"
    assert caplog.messages == [
        f"192.0.2.1 {wrong}",
        f"192.0.2.2 {wrong}",
        f"2001:db8::/64 {wrong}",
    ]
    for _ in range(10_000):
        tally.denied(WRONG, "192.0.2.1")
    assert len(caplog.messages) == 3
    clock.advance(60.0)
    tally.denied(WRONG, "::ffff:192.0.2.1")
    tally.denied(WRONG, "192.0.2.1")
    assert caplog.messages[3:] == [
        f"192.0.2.1 {wrong}; and 10001 times before, since its last line"
    ]


def test_a_flood_of_sources_is_forgotten() -> None:
    tally = Tally(VirtualClock())
    for number in range(70_000):
        tally.denied(WRONG, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(tally._sources) == 1000


def test_users_behind_the_first_thousand_are_counted_together() -> None:
    tally = Tally(VirtualClock())
    for number in range(1003):
        tally.count_reply(str(number), Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1))
    tally.count_reply("0", Usage(prompt_tokens=1, completion_tokens=1, cached_tokens=0))
    assert len(tally.used) == 1001
    assert tally.used["0"] == Used(2, 6, 1, 3)
    assert tally.used[OTHERS] == Used(3, 15, 3, 6)
