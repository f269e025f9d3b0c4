"""plain: chats over standard input and output, for pipes and scripts."""

from __future__ import annotations

import io
import sys

from app.exits import ExitCode
from app.gateway.stdio import Source, StdioGateway
from app.process import StreamError, complain, error_terminal
from app.serving import serving
from app.settings import Settings
from engine.knobs import Knobs


def run(settings: Settings, *, each: bool, as_json: bool) -> int:
    """Answer the lines of standard input; returns the exit code.

    Args:
        each: take each line as a conversation of its own, as many at once as the queue takes.

    Raises:
        ModelLoadError: the model could not be loaded.
        StreamError: the input or output failed.
        BrokenPipeError: nobody reads the output any more.
    """
    if sys.stdout is None:
        raise StreamError("standard output is closed; it must be open for the replies")
    with serving(settings.load_request(), error_terminal()) as client:
        if settings.pinned:
            client.pin("system", settings.pinned)
        gateway = StdioGateway(
            client,
            _input(),
            sys.stdout.buffer,
            complain,
            system=settings.system,
            sampling=settings.sampling,
            as_json=as_json,
        )
        try:
            answered = gateway.converse_each(Knobs().queue_limit) if each else gateway.converse()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StreamError(f"standard input or output failed: {error.strerror}") from error
    return ExitCode.OK if answered else ExitCode.FAILED


def _input() -> Source:
    if sys.stdin is None:
        return io.BytesIO()
    # Unbuffered: a thread that ends while it holds the lock of a buffer aborts the interpreter.
    return io.FileIO(sys.stdin.fileno(), closefd=False)
