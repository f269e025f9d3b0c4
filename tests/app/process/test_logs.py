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


def test_logs_go_to_their_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "logs" / "b.log"
    recent = logs.set_up(file, None, stderr=True)
    logging.getLogger("app.x").debug("quiet")
    logging.getLogger("engine.x").info("for the file")
    logging.getLogger("somebody").info("else's")
    logging.getLogger("engine.x").warning("for all")
    assert capsys.readouterr().err == "tui: WARNING: for all\n"
    lines = file.read_text().splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == ["for the file", "for all"]
    assert list(recent.lines) == lines
    logs.set_up(file, "debug", stderr=False)
    logging.getLogger("app.x").debug("loud")
    assert "loud" in file.read_text()
    assert capsys.readouterr().err == ""


def test_a_call_whose_arguments_do_not_fit_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recent = logs.set_up(tmp_path / "b.log", None, stderr=False)
    logging.getLogger("somebody").warning("none wanted", FutureWarning)
    logging.getLogger("somebody").warning("after")
    assert [line.split(": ", 1)[1] for line in recent.lines] == ["after"]
    assert "Logging error" in capsys.readouterr().err


def test_a_log_file_that_cannot_be_written_is_done_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    logs.set_up(tmp_path / "file" / "b.log", "error", stderr=True)
    assert capsys.readouterr().err == ""
    logs.set_up(tmp_path / "file" / "b.log", None, stderr=True)
    assert capsys.readouterr().err.startswith("tui: WARNING: no log is written: ")
