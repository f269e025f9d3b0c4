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

from app.crash import CrashReporter
from app.database import StoreError
from app.exits import ExitCode
from app.gateway.mqtt.transport.address import AddressError
from app.logs import set_up
from app.serving import ModelLoadError
from app.settings import Settings, SettingsError, unknown_variables

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


def show(text: str, end: str = "\n") -> None:
    """Print at once, for whoever reads along in a pipe.

    Raises:
        StreamError: it cannot be written.
        BrokenPipeError: nobody reads it any more.
    """
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StreamError(f"standard output cannot be written: {error.strerror}") from error


def complain(message: str) -> None:
    """Tell a person what is wrong, on standard error, apart from what a program reads."""
    for line in message.splitlines():
        typer.echo(f"tui: {line}", err=True)


def run(settings: Settings, body: Callable[[], int], *, stderr: bool) -> int:
    """Run a command; returns its exit code, whatever ended it.

    Args:
        stderr: whether the log goes to standard error too; never under the interface.

    Raises:
        SystemExit: SIGTERM came; what the command had opened is closed.
    """
    recent = set_up(settings.log_file, settings.log_level, stderr=stderr)
    for name in unknown_variables():
        log.warning("the environment variable %s is no setting and is ignored", name)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A reply or a path may hold what the encoding of the output lacks.
        sys.stdout.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)
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
