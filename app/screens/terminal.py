"""TerminalDriver: Textual's driver for a terminal that may disappear, may export its size, and need
not be the target of standard error."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

LOOK_SECONDS = 0.1


class TerminalDriver(LinuxDriver):
    """A `LinuxDriver` that outlives its terminal.

    When a terminal closes, the kernel sends SIGHUP and SIGCONT, and from then on every write fails.
    Textual 8.2 takes SIGCONT for the end of a suspension and starts its threads a second time. Its
    output thread dies of the first failed write, and then the event loop waits for ever for space
    in that thread's queue. Its input thread ignores the end of input and polls without end. There
    is no public way to fix these. Only this class uses private names of 8.2.
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
        # `shutil.get_terminal_size` prefers these variables to the terminal, which may be resized.
        for variable in ("COLUMNS", "LINES"):
            os.environ.pop(variable, None)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def suspend_application_mode(self) -> None:
        """Leave the terminal to the shell or to an editor. The application may go on and paint
        meanwhile, which would fill the queue of the output thread that was stopped, and then block
        the event loop."""
        super().suspend_application_mode()
        self._writer_thread: Any = _Nowhere()

    def run_input_thread(self) -> None:
        """Read keys until the application ends or the terminal is gone: that is the end of input,
        or an error, where the other side of a pty closes."""
        parser, decoder = XTermParser(self._debug), getincrementaldecoder("utf-8")()
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(LOOK_SECONDS):
                    try:
                        data = os.read(self.fileno, 4096)
                    except OSError as error:
                        if error.errno != errno.EIO:
                            raise
                        data = b""
                    if not data:
                        self._file.hang_up()
                        return
                    for message in parser.feed(decoder.decode(data)):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)
        with suppress(EOFError, ParseError):
            tuple(parser.feed(""))

    def restore(self) -> None:
        """Leave application mode past the driver's threads, which may hang; from any thread."""
        self.exit_event.set()
        self._writer_thread = self._file
        self._disable_mouse_support()
        self.stop_application_mode()
        self._file.flush()


class _Nowhere:
    """The output of an application that does not have the terminal."""

    def write(self, _text: str) -> None: ...

    def flush(self) -> None: ...

    def stop(self) -> None: ...


class _Lasting:
    """A terminal's file whose writes go nowhere once they fail. When the terminal is gone, it sends
    this program a SIGHUP, because the kernel sends one only to the terminal's first program. If
    that is `make`, which waits for its child, no one else would, and Textual's input thread would
    spin for ever.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_gone = False

    def write(self, text: str) -> None:
        with self._watching():
            self._file.write(text)

    def flush(self) -> None:
        with self._watching():
            self._file.flush()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.EIO:
                self.hang_up()

    def hang_up(self) -> None:
        """End the program as after a SIGHUP of its terminal."""
        if not self._is_gone:
            self._is_gone = True
            os.kill(os.getpid(), signal.SIGHUP)

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()
