"""Process: runs a command to its end, with its log, signals, error messages and exit code."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TextIO

import typer

from app.gateway.http.settings import HttpError
from app.gateway.mqtt.transport.address import AddressError
from app.process.crash import CrashReporter
from app.process.exits import ExitCode
from app.process.logs import set_up
from app.process.serving import ModelLoadError
from app.process.watchdog import Watchdog
from app.settings.layers import unknown_variables
from app.settings.settings import Settings, SettingsError
from app.store.database import StoreError
from widgets.harmless import harmless

log = logging.getLogger(__name__)


class StreamError(Exception):
    """Standard input or output cannot be read or written; the message says why."""


_CODES: dict[type[Exception], ExitCode] = {
    SettingsError: ExitCode.USAGE,
    AddressError: ExitCode.USAGE,
    HttpError: ExitCode.USAGE,
    ModelLoadError: ExitCode.NO_MODEL,
    StoreError: ExitCode.NO_FILE,
    StreamError: ExitCode.NO_FILE,
}


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. It is None if it was closed when Python started."""
    return stream is not None and stream.isatty()


def has_screen() -> bool:
    """Whether there is a terminal that can do more than print."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout) and not is_dumb()


def is_dumb() -> bool:
    """Whether TERM says that the terminal can only print, as in Emacs and in build logs."""
    return os.environ.get("TERM") == "dumb"


def error_terminal() -> TextIO | None:
    """Standard error if it is a terminal; otherwise None."""
    return sys.stderr if is_terminal(sys.stderr) else None


def print_text(text: str, end: str = "\n", *, as_it_is: bool = False) -> None:
    """Print a text at once, so that a reader of a pipe can follow. For a terminal it is made
    harmless.

    Args:
        as_it_is: whether a terminal gets its control characters, such as our own colours.

    Raises:
        StreamError: standard output cannot be written.
        BrokenPipeError: the reader of standard output has gone.
    """
    if is_terminal(sys.stdout) and not as_it_is:
        text = harmless(text)
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StreamError(f"standard output cannot be written: {error.strerror}") from error


def complain(message: str) -> None:
    """Print an error message for the user, on standard error, where no program reads.

    It is made harmless, because names and paths in it may hold control characters.
    """
    for line in harmless(message).splitlines():
        typer.echo(f"tui: {line}", err=True)


def run(settings: Settings, body: Callable[[], int], *, stderr: bool, drains: bool = False) -> int:
    """Run a command; returns its exit code, whatever ended it.

    Args:
        body: the command; returns its exit code.
        stderr: whether the log goes to standard error too. It must not while the interface shows.
        drains: whether a closed terminal ends the command as SIGTERM does.

    Raises:
        SystemExit: SIGTERM came, or SIGHUP to a command that drains. All of the command's files and
            sockets are closed.
    """
    recent = set_up(
        settings.log_file,
        settings.log_level,
        stderr=stderr,
        as_json=settings.log_format == "json",
    )
    for name in unknown_variables():
        log.warning("the environment variable %s is not a setting and is ignored", name)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A reply or a path may hold characters that the encoding of the output lacks.
        sys.stdout.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Windows has no SIGHUP. A command started by nohup must keep running.
    if drains and sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)
    # A command that drains takes as long as that may, until the second signal.
    with (
        CrashReporter(settings.crash_dir, settings, recent.lines) as reporter,
        Watchdog(lambda how: reporter.report(TimeoutError(how)), signals=2 if drains else 1),
    ):
        try:
            return body()
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except BrokenPipeError:
            _discard_output()
            return ExitCode.CLOSED_PIPE
        except tuple(_CODES) as error:
            complain(str(error))
            if isinstance(error, StreamError):
                _discard_output()
            return next(code for kind, code in _CODES.items() if isinstance(error, kind))
        except Exception as error:
            complain(reporter.report(error))
            return ExitCode.CRASHED


def _discard_output() -> None:
    """Discard buffered standard output. Otherwise Python complains about it at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(ExitCode.TERMINATED)


def _hang_up(number: int, _frame: FrameType | None) -> None:
    # The shell sends a SIGHUP and the kernel another one. The second does not mean to end at once.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(ExitCode.HUNG_UP)
