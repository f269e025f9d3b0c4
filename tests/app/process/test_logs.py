"""A log that clients cannot fill."""

from __future__ import annotations

import json
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


def test_a_log_of_objects_has_a_line_for_each_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.log"
    recent = logs.set_up(file, "info", stderr=True, as_json=True)
    log = logging.getLogger("app.some")
    log.info("an\x1b[31m end\nin lines", extra={"facts": {"user": "alice", "ttft_s": None}})
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("broken")
    lines = file.read_text().splitlines()
    assert capsys.readouterr().err.splitlines() == lines
    first, second = map(json.loads, lines)
    assert first["time"].endswith("+00:00")
    assert (first["level"], first["logger"], first["user"]) == ("info", "app.some", "alice")
    assert first["message"] == "an\x1b[31m end\nin lines"
    assert lines[0].isascii()
    assert first["ttft_s"] is None
    assert (second["level"], second["message"]) == ("error", "broken")
    assert second["traceback"].endswith("ValueError: x")
    assert recent.lines[0].endswith("an\x1b[31m end\nin lines")  # for the panel, in words
