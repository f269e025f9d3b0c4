"""LineCutter: cuts chunks of bytes into lines, within limits."""

from __future__ import annotations

from app.gateway.faults import Fault
from app.store.files import Line

# OpenAI's limit of requests in a batch.
MAX_LINES = 50_000


class LineCutter:
    """Buffers complete lines until `take`, and the beginning of the current line.

    Args:
        max_bytes: limit of the whole file.
        max_line_bytes: limit of a line, which is a request.

    Attributes:
        num_bytes: bytes received.
        num_held: how many of these are buffered here.
    """

    def __init__(self, max_bytes: int, max_line_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_line_bytes = max_line_bytes
        self._begun: list[bytes] = []
        self._num_begun = 0
        self._num_lines = 0
        self._lines: list[Line] = []
        self.num_bytes = 0
        self.num_held = 0

    def feed(self, piece: bytes) -> None:
        """Add the next bytes.

        Raises:
            Fault: 413, the file is too large; 400, it has too many lines, or one that is too long.
        """
        self.num_bytes += len(piece)
        self.num_held += len(piece)
        if self.num_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        first, *others = piece.split(b"\n")
        for part in others:
            self._cut(first + b"\n")
            first = part
        self._begin(first)

    def end(self) -> None:
        """End the input: the rest is the last line."""
        if self._num_begun:
            self._cut(b"")

    def take(self) -> list[Line]:
        """Return and clear the complete lines."""
        lines, self._lines = self._lines, []
        self.num_held = self._num_begun
        return lines

    def _begin(self, part: bytes) -> None:
        if part:
            self._begun.append(part)
            self._num_begun += len(part)
            if self._num_begun > self._max_line_bytes:
                text = f"line {self._num_lines + 1} of file has more than the"
                text += f" {self._max_line_bytes} bytes that a request may have"
                raise Fault(400, text, "file", reason="long line")

    def _cut(self, part: bytes) -> None:
        self._begin(part)
        self._num_lines += 1
        if self._num_lines > MAX_LINES:
            text = f"file has more than the {MAX_LINES} lines that are allowed"
            raise Fault(400, text, "file", reason="too many lines")
        self._lines.append(Line(self._num_lines, b"".join(self._begun)))
        self._begun, self._num_begun = [], 0


def too_large(max_bytes: int) -> Fault:
    """The fault for a file with more bytes than this."""
    text = f"file has more than the {max_bytes} bytes that are allowed"
    return Fault(413, text, "file", reason="too large")
