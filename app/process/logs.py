"""Logs: written to a file, and to standard error if wanted; the last lines stay in memory."""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

from app.system.private import create_file, create_folder, tighten, tighten_folder
from widgets.harmless import harmless

OURS = ("app", "engine", "widgets")
FILE_BYTES = 1_000_000
FILES_KEPT = 3
LINES_KEPT = 500
# Limits for warnings and errors from one place in the code: this many at once, and then one in this
# many seconds.
LINES_AT_ONCE = 30
SECONDS_A_LINE = 10.0

# Modules whose failures are shown on standard error in any case, as sentences.
_ALWAYS_LOGGED = ("engine.serving.host", "app.process.crash")

_IS_LOGGED = "is_logged"

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


@dataclass(slots=True)
class _Place:
    """A place in the code that logs.

    Attributes:
        room: how many lines may pass at `filled_at`.
        left_out: lines dropped since the last one that passed.
    """

    room: float
    filled_at: float
    left_out: int = 0


class Sparing(logging.Filter):
    """Drops repeated warnings and errors from one place in the code. Clients can provoke them, and
    they would push everything else out of the file and out of crash reports. The next line that
    passes states how many were dropped. A log's handlers share one.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int], _Place] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        known = record.__dict__
        if _IS_LOGGED not in known:  # A record passes once for each handler.
            with self._lock:
                known[_IS_LOGGED] = self._has_room(record)
        return bool(known[_IS_LOGGED])

    def _has_room(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        place = self._places.setdefault((record.name, record.lineno), _Place(LINES_AT_ONCE, now))
        place.room = min(LINES_AT_ONCE, place.room + (now - place.filled_at) / SECONDS_A_LINE)
        place.filled_at = now
        if place.room < 1.0:
            place.left_out += 1
            return False
        place.room -= 1.0
        if place.left_out:
            record.msg = f"{record.msg} (after {place.left_out} like it that are left out)"
            place.left_out = 0
        return True


class RecentLines(logging.Handler):
    """The last log lines, for the log panel and for crash reports."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.lines.append(self.format(record))
        except Exception:  # a library's call whose arguments do not match its format
            self.handleError(record)


class PrivateFile(logging.handlers.RotatingFileHandler):
    """A log file that only its owner may read, because a log may quote a chat."""

    def _open(self) -> TextIOWrapper:
        create_file(Path(self.baseFilename))
        return super()._open()


class HarmlessFormatter(logging.Formatter):
    """Formats records harmlessly for a terminal, because they may quote any text."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object in one line, with the data of its `facts`, if it has any:
    those of a request (`app.gateway.exchange.log_end`).
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "process": record.process,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line | record.__dict__.get("facts", {}))


def set_up(file: Path, level: str | None, *, stderr: bool, as_json: bool = False) -> RecentLines:
    """Send our modules' records at `level` and above to a file and, if wanted, to standard error.
    Other modules are logged from warning on. Returns the last lines.

    If the file cannot be written, one line says so, and there is no file.

    Args:
        file: the log file.
        level: a level by name; None is info for the file and warning for standard error.
        stderr: whether the log goes to standard error too. It must not while the interface shows.
        as_json: whether a line is a JSON object, in the file and on standard error.
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
        create_folder(file.parent)
        handlers.append(
            PrivateFile(file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
        )
    except OSError as error:
        trouble = f"no log is written: {file}: {error.strerror}"
    sparing = Sparing()
    for handler in handlers:
        handler.addFilter(sparing)
        handler.setFormatter(
            JsonFormatter() if as_json and handler is not recent else logging.Formatter(_FORMAT)
        )
        root.addHandler(handler)
    if stderr:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setLevel((level or "warning").upper())
        plain = HarmlessFormatter("tui: %(levelname)s: %(message)s")
        terminal.setFormatter(JsonFormatter() if as_json else plain)
        terminal.addFilter(sparing)
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
    """Whether a record goes to standard error. Warnings of libraries only go to the file, because
    they are mostly about our own choices."""
    if record.name.partition(".")[0] not in OURS:
        return record.levelno >= logging.ERROR
    return record.name not in _ALWAYS_LOGGED
