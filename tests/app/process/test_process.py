from __future__ import annotations

import io
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from app.process.exits import ExitCode
from app.process.process import StreamError, print_text, run
from app.process.serving import ModelLoadError
from app.settings.settings import Settings, SettingsError
from app.store.database import HinderedError, StoreError


@pytest.fixture
def settings(own_process: Path) -> Settings:
    return Settings(data_dir=own_process / "data", log_file=own_process / "log")


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


ENDS = [
    (SettingsError("theme is 'x'"), ExitCode.USAGE, "tui: theme is 'x'\n"),
    (SettingsError("one\ntwo"), ExitCode.USAGE, "tui: one\ntui: two\n"),
    (ModelLoadError("no room"), ExitCode.NO_MODEL, "tui: no room\n"),
    (StoreError("locked"), ExitCode.NO_FILE, "tui: locked\n"),
    (HinderedError("full"), ExitCode.NO_FILE, "tui: full\n"),
    (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
]


@pytest.mark.parametrize(("error", "code", "told"), ENDS, ids=lambda x: type(x).__name__)
def test_each_end_has_its_code_and_its_sentence(
    error: BaseException,
    code: ExitCode,
    told: str,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(settings, raising(error), stderr=False) == code
    assert capsys.readouterr().err == told
    assert not list(settings.crash_dir.glob("crash-*"))


def test_what_the_body_returns_is_the_code(settings: Settings) -> None:
    assert run(settings, lambda: ExitCode.FAILED, stderr=False) == ExitCode.FAILED


def test_a_crash_is_reported_and_told_in_one_line(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(settings, raising(ZeroDivisionError("0/0")), stderr=True) == ExitCode.CRASHED
    (report,) = settings.crash_dir.glob("crash-*")
    line = f"tui: batchdeck crashed (ZeroDivisionError: 0/0); the report is {report}\n"
    assert capsys.readouterr().err == line
    assert "ZeroDivisionError: 0/0" in report.read_text()


def test_what_the_encoding_of_the_output_lacks_is_replaced(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="ascii"))

    def body() -> int:
        print_text("naïve")
        return ExitCode.OK

    assert run(settings, body, stderr=False) == ExitCode.OK
    assert output.getvalue().split() == [b"na?ve"]


def test_sigterm_ends_the_body_as_an_exit(settings: Settings) -> None:
    closed = []

    def body() -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
            return ExitCode.OK
        finally:
            closed.append(True)

    with pytest.raises(SystemExit) as ended:
        run(settings, body, stderr=False)
    assert ended.value.code == ExitCode.TERMINATED
    assert closed


RUDE = "a\x1b[2Jb\x07\x9b\u202e\u2066c\td"
TAMED = r"a\x1b[2Jb\x07\x9b\u202e\u2066c" "\td"


def test_complaints_and_the_log_on_standard_error_cannot_steer_a_terminal(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> int:
        logging.getLogger("app.test").warning("%s", RUDE)
        raise StoreError(f"{RUDE}\nsecond\x85line \udcff")

    assert run(settings, body, stderr=True) == ExitCode.NO_FILE
    told = capsys.readouterr().err
    assert told == f"tui: WARNING: {TAMED}\ntui: {TAMED}\ntui: second\\x85line \\udcff\n"


def test_a_terminal_gets_it_harmless_and_a_pipe_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_text(f"{RUDE}\r\nend")
    assert capsys.readouterr().out == f"{RUDE}\r\nend\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_text(f"{RUDE}\r\nend")
    print_text("\x1b[1mours", as_it_is=True)
    assert capsys.readouterr().out == f"{TAMED}\nend\n\x1b[1mours\n"


def test_a_variable_that_no_setting_is_read_from_is_told_of(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUI_MODLE", "x")
    run(settings, lambda: ExitCode.OK, stderr=True)
    warning = "tui: WARNING: the environment variable TUI_MODLE is not a setting and is ignored\n"
    assert capsys.readouterr().err == warning


def test_an_output_that_cannot_be_written_has_its_code(
    settings: Settings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.process.process._discard_output", lambda: None)
    assert run(settings, raising(StreamError("full")), stderr=False) == ExitCode.NO_FILE
    assert run(settings, raising(BrokenPipeError()), stderr=False) == ExitCode.CLOSED_PIPE
    assert capfd.readouterr().err == "tui: full\n"
