"""TerminalDriver: Textual's driver for a terminal that may go away, exports its size, or is not
where standard error goes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """A `LinuxDriver` that outlives its terminal.

    When a terminal closes, the kernel sends SIGHUP and SIGCONT, and from then on every write fails.
    Textual 8.2 takes SIGCONT for the end of a sleep and starts its threads a second time. Its
    output thread dies of the first write that fails, and then the event loop waits for ever for
    room in that thread's queue. There is no public way to mend either. Private names of 8.2 are
    used in this class only.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Textual 8.2 draws on standard error, which may be a file where the interface is started:
        # that asks for standard input and output alone.
        assert sys.__stdout__ is not None
        self._file: Any = _Lasting(sys.__stdout__)

    def _sigcont_application(self, *arguments: Any) -> None:
        if self._must_signal_resume:
            super()._sigcont_application(*arguments)

    def start_application_mode(self) -> None:
        # `shutil.get_terminal_size` believes these variables more than the terminal, which may be
        # resized.
        for variable in ("COLUMNS", "LINES"):
            os.environ.pop(variable, None)
        super().start_application_mode()  # type: ignore[no-untyped-call]


class _Lasting:
    """A file whose writes go nowhere once they fail."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()
