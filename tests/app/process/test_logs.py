"""A log that clients cannot fill."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app.process import logs
from tests.support.clock import VirtualClock


def test_a_flood_of_warnings_pushes_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, sparing = VirtualClock(), logs.Sparing
    monkeypatch.setattr(logs, "Sparing", lambda: sparing(clock))
    file = tmp_path / "a.log"
    recent = logs.set_up(file, "debug", stderr=True)
    log = logging.getLogger("app.flooded")
    log.warning("what matters")

    def flood(count: int) -> None:
        for number in range(count):
            log.error("broken: %d%%", number)

    flood(10_000)
    for number in range(100):
        log.info("usual: %d", number)
    clock.advance(logs.SECONDS_A_LINE)
    flood(2)
    assert len(recent.lines) == 1 + logs.LINES_AT_ONCE + 100 + 1
    assert recent.lines[0].endswith("what matters")
    left_out = 10_000 - logs.LINES_AT_ONCE
    assert recent.lines[-1].endswith(f"broken: 0% (after {left_out} like it that are left out)")
    assert file.read_text().splitlines() == [*recent.lines]
