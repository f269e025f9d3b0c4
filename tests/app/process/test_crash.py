from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.process.crash import CrashReporter
from app.settings.settings import Settings


def fail(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_a_report_says_what_is_needed_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests that run in parallel cannot tell each other of a log that is no Unicode.
    monkeypatch.setattr(logging.getLogger("app.process.crash"), "disabled", True)
    settings = Settings(model="some-model", system="my secret plans")
    reporter = CrashReporter(tmp_path / "new", settings, ["the last line"])
    line = reporter.report(fail("two\nlines \ud800"))
    (report,) = (tmp_path / "new").iterdir()
    assert line == f"batchdeck crashed (ValueError: two lines \ud800); the report is {report}"
    text = report.read_text()
    for part in ("in fail", "MainThread:", "torch ", "model = some-model", "the last line"):
        assert part in text
    assert "secret" not in text


def test_a_crash_is_told_where_no_report_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = CrashReporter(tmp_path / "file", Settings(), []).report(fail("x"))
    assert line.startswith("batchdeck crashed (ValueError: x) and no report could be written: ")


def test_a_thread_that_ends_by_an_exception_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CrashReporter(tmp_path, Settings(), []) as reporter:
        thread = threading.Thread(target=lambda: 1 / 0, name="engine")
        thread.start()
        thread.join()
    assert threading.excepthook is threading.__excepthook__
    (report,) = tmp_path.glob("crash-*")
    assert f"the report is {report}" in caplog.messages[-1]
    assert "ZeroDivisionError" in report.read_text()
    assert reporter.fault_file.read_text() == ""


def test_a_fault_of_the_machine_is_written_down(tmp_path: Path) -> None:
    program = """
import faulthandler, sys
from pathlib import Path
from app.process.crash import CrashReporter
from app.settings.settings import Settings
with CrashReporter(Path(sys.argv[1]), Settings(), []):
    faulthandler._sigsegv()
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode < 0
    assert "Segmentation fault" in (tmp_path / "fault.txt").read_text()
