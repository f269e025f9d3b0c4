"""CrashReporter: writes the facts about a crash to a file, and reports its path."""

from __future__ import annotations

import faulthandler
import logging
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Self, TextIO

from app.settings.settings import Settings
from app.system.private import create_file, create_folder, tighten
from app.system.versions import PACKAGES, version

log = logging.getLogger(__name__)


class CrashReporter:
    """Writes crash reports. As a context manager, it also does so for threads that end by an
    exception.

    If Python does not survive, as with a segmentation fault in a kernel, `faulthandler` writes what
    it can to `fault_file`.

    Args:
        folder: the folder for reports.
        settings: written to reports, without the system prompt.
        recent: the last log lines.
    """

    def __init__(self, folder: Path, settings: Settings, recent: Iterable[str]) -> None:
        self.folder = folder
        self.fault_file = folder / "fault.txt"
        self._settings = settings
        self._recent = recent
        self._faults: TextIO | None = None

    def __enter__(self) -> Self:
        threading.excepthook = self._thread_ended
        try:
            create_folder(self.folder)
            tighten(self.folder)
            create_file(self.fault_file)
            self._faults = self.fault_file.open("a", encoding="utf-8")
        except OSError as error:
            log.warning("no crash report can be written: %s", error)
        else:
            faulthandler.enable(self._faults)
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = threading.__excepthook__
        if self._faults is not None:
            faulthandler.disable()
            self._faults.close()

    def report(self, error: BaseException) -> str:
        """Write a report; returns the line to show, even if no report can be written."""
        what = " ".join(f"{type(error).__name__}: {error}".split())
        log.critical("crashed: %s", what, exc_info=error)
        path = self.folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        try:
            create_folder(self.folder)
            create_file(path)
            path.write_text(self._text(error), encoding="utf-8", errors="backslashreplace")
        except OSError as trouble:
            return f"batchdeck crashed ({what}) and no report could be written: {trouble}"
        return f"batchdeck crashed ({what}); the report is {path}"

    def _text(self, error: BaseException) -> str:
        settings = self._settings.model_dump(exclude={"system"})
        sections = {
            "Error": "".join(traceback.format_exception(error)).splitlines(),
            "Versions": [
                f"Python {sys.version.split()[0]} on {platform.platform()}",
                *(f"{name} {version(name) or 'is not installed'}" for name in PACKAGES),
            ],
            "Settings": [f"{name} = {value}" for name, value in settings.items()],
            "Threads": _stacks(),
            "Log": list(self._recent),
        }
        return "".join(
            f"{title}\n{''.join(f'  {line}{chr(10)}' for line in lines)}\n"
            for title, lines in sections.items()
        )

    def _thread_ended(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and args.exc_type is not SystemExit:
            log.critical("%s", self.report(args.exc_value))


def _stacks() -> list[str]:
    """The stack of each thread, as lines."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"{names.get(ident, ident)}:")
        lines += "".join(traceback.format_stack(frame)).splitlines()
    return lines
