"""Process: how a command runs and ends: its log, its signals, its complaints, its exit code."""

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

from app.gateway.mqtt.transport.address import AddressError
from app.process.crash import CrashReporter
from app.process.exits import ExitCode
from app.process.logs import set_up
from app.process.serving import ModelLoadError
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
    ModelLoadError: ExitCode.NO_MODEL,
    StoreError: ExitCode.NO_FILE,
    StreamError: ExitCode.NO_FILE,
}


def is_terminal(stream: TextIO | None) -> bool:
    """Python has None for a stream that was closed when it started."""
    return stream is not None and stream.isatty()


def error_terminal() -> TextIO | None:
    """Standard error, if a person is looking at it."""
    return sys.stderr if is_terminal(sys.stderr) else None


def show(text: str, end: str = "\n", *, as_it_is: bool = False) -> None:
    """Print at once, for whoever reads along in a pipe. A terminal gets it harmless.

    Args:
        as_it_is: whether a terminal is to obey what is in it, such as colours of ours.

    Raises:
        StreamError: it cannot be written.
        BrokenPipeError: nobody reads it any more.
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
    """Tell a person what is wrong, on standard error, apart from what a program reads.

    Names and paths, of files or from afar, may hold what a terminal would obey.
    """
    for line in harmless(message).splitlines():
        typer.echo(f"tui: {line}", err=True)


def run(settings: Settings, body: Callable[[], int], *, stderr: bool, drains: bool = False) -> int:
    """Run a command; returns its exit code, whatever ended it.

    Args:
        stderr: whether the log goes to standard error too; never under the interface.
        drains: whether a closed terminal is to end the command as SIGTERM does.

    Raises:
        SystemExit: SIGTERM came, or SIGHUP to what drains; what the command had opened is closed.
    """
    recent = set_up(settings.log_file, settings.log_level, stderr=stderr)
    for name in unknown_variables():
        log.warning("the environment variable %s is no setting and is ignored", name)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A reply or a path may hold what the encoding of the output lacks.
        sys.stdout.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)
    # Windows has no SIGHUP, and who started it by nohup wants it to go on.
    if drains and sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hang_up)
    with CrashReporter(settings.crash_dir, settings, recent.lines) as reporter:
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
            return _CODES[type(error)]
        except Exception as error:
            complain(reporter.report(error))
            return ExitCode.CRASHED


def _discard_output() -> None:
    """Send what standard output still holds nowhere, or Python complains of it at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(ExitCode.TERMINATED)


def _hang_up(number: int, _frame: FrameType | None) -> None:
    # The shell sends one and the kernel another: the second is no wish to end at once.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(ExitCode.HUNG_UP)
