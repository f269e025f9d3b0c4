"""Logs: go to a file, and to standard error if wanted; the last lines are kept at hand."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from collections import deque
from io import TextIOWrapper
from pathlib import Path

from app.store.private import make_file, make_folder, tighten, tighten_folder
from widgets.harmless import harmless

OURS = ("app", "engine", "widgets")
FILE_BYTES = 1_000_000
FILES_KEPT = 3
LINES_KEPT = 500

# Standard error tells the failures that these modules log anyway, as sentences.
_TOLD_ANYWAY = ("engine.serving.host", "app.process.crash")

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


class RecentLines(logging.Handler):
    """The last lines logged, for the log panel and for crash reports."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.lines.append(self.format(record))
        except Exception:  # a library's call whose arguments do not fit its text
            self.handleError(record)


class PrivateFile(logging.handlers.RotatingFileHandler):
    """A log file that only its owner may read, because a log may quote a chat."""

    def _open(self) -> TextIOWrapper:
        make_file(Path(self.baseFilename))
        return super()._open()


class HarmlessFormatter(logging.Formatter):
    """Formats records for a terminal, harmless, because they may quote texts from anywhere."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def set_up(file: Path, level: str | None, *, stderr: bool) -> RecentLines:
    """Send what our modules log at `level` and above to a file and, if wanted, to standard error.
    Other modules are logged from warning on. Returns the last lines.

    If the file cannot be written, one line says so, and there is no file.

    Args:
        file: where the log is kept.
        level: a level by name; None is info for the file and warning for standard error.
        stderr: whether the log goes to standard error too. It must not while the interface shows.
    """
    root = logging.getLogger()
    for handler in tuple(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.WARNING)
    file_level = (level or "info").upper()
    for name in OURS:
        logging.getLogger(name).setLevel(file_level)
    logging.captureWarnings(True)
    recent = RecentLines()
    handlers: list[logging.Handler] = [recent]
    trouble = ""
    try:
        make_folder(file.parent)
        handlers.append(
            PrivateFile(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
        )
    except OSError as error:
        trouble = f"no log is written: {file}: {error.strerror}"
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
    if stderr:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setLevel((level or "warning").upper())
        terminal.setFormatter(HarmlessFormatter("tui: %(levelname)s: %(message)s"))
        terminal.addFilter(_is_for_person)
        root.addHandler(terminal)
    if trouble:
        logging.getLogger(__name__).warning("%s", trouble)
    else:
        kept = (file.with_name(f"{file.name}.{number}") for number in range(1, FILES_KEPT + 1))
        tighten(file, *kept)
        tighten_folder(file.parent, (file.name,))
    return recent


def _is_for_person(record: logging.LogRecord) -> bool:
    """Whether a record goes to standard error. Warnings of libraries go only to the file, for they
    are mostly about choices of ours."""
    if record.name.partition(".")[0] not in OURS:
        return record.levelno >= logging.ERROR
    return record.name not in _TOLD_ANYWAY
