"""plain: chats over standard input and output, for pipes and scripts."""

from __future__ import annotations

import io
import sys

from app.gateway.stdio import Sink, Source, StdioGateway
from app.process.exits import ExitCode
from app.process.process import StreamError, complain, error_terminal, is_terminal
from app.process.serving import serving
from app.settings.settings import Settings
from engine.api.knobs import Knobs
from widgets.harmless import harmless
from widgets.off_path import in_full


class TerminalSink:
    """Standard output that is a terminal. The model's text must not control it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: bytes) -> None:
        """Write whole characters."""
        self._sink.write(harmless(data.decode()).encode())

    def flush(self) -> None:
        self._sink.flush()


def run(settings: Settings, *, each: bool, as_json: bool) -> int:
    """Answer the lines of standard input; returns the exit code.

    Args:
        each: whether each line is a separate conversation, as many at once as the queue admits.

    Raises:
        ModelLoadError: the model could not be loaded.
        StreamError: the input or output failed.
        EngineCrashError: the engine crashed. The line whose reply was due has got an error.
        BrokenPipeError: the reader of the output has gone.
    """
    if sys.stdout is None:
        raise StreamError("standard output is closed; it must be open for the replies")
    with serving(settings.load_request(), error_terminal()) as client:
        if (snapshot := client.snapshot()) is not None and (off := in_full(snapshot.model)):
            complain(f"{snapshot.model.name} is not wholly on the fast path: {off}")
        if settings.pinned:
            client.pin("system", settings.pinned)
        gateway = StdioGateway(
            client,
            _input(),
            TerminalSink(sys.stdout.buffer) if is_terminal(sys.stdout) else sys.stdout.buffer,
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
    # It is unbuffered, because a thread that ends while it holds a buffer's lock aborts the
    # interpreter.
    return io.FileIO(sys.stdin.fileno(), closefd=False)
