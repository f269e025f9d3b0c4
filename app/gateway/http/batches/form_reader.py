"""FormReader and LineCutter: parse a form as it arrives, its file cut into lines."""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.gateway.faults import Fault
from app.store.files import Line

# Limits of one field, and of all parts.
MAX_FIELD_BYTES = 1024
MAX_PARTS = 16
# OpenAI's limit of requests in a batch.
MAX_LINES = 50_000


class LineCutter:
    """Buffers complete lines until `drain`, and the beginning of the current line.

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
        self._partial: list[bytes] = []
        self._num_partial = 0
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
        self._append_to_line(first)

    def end(self) -> None:
        """End the input: the rest is the last line."""
        if self._num_partial:
            self._cut(b"")

    def drain(self) -> list[Line]:
        """Return and clear the complete lines."""
        lines, self._lines = self._lines, []
        self.num_held = self._num_partial
        return lines

    def _append_to_line(self, part: bytes) -> None:
        if part:
            self._partial.append(part)
            self._num_partial += len(part)
            if self._num_partial > self._max_line_bytes:
                text = f"line {self._num_lines + 1} of file has more than the"
                text += f" {self._max_line_bytes} bytes that a request may have"
                raise Fault(400, text, "file", reason="long line")

    def _cut(self, part: bytes) -> None:
        self._append_to_line(part)
        self._num_lines += 1
        if self._num_lines > MAX_LINES:
            text = f"file has more than the {MAX_LINES} lines that are allowed"
            raise Fault(400, text, "file", reason="too many lines")
        self._lines.append(Line(self._num_lines, b"".join(self._partial)))
        self._partial, self._num_partial = [], 0


def too_large(max_bytes: int) -> Fault:
    """The fault for a file with more bytes than this."""
    text = f"file has more than the {max_bytes} bytes that are allowed"
    return Fault(413, text, "file", reason="too large")


class FormReader:
    """Reads multipart/form-data with one file, the part named `file`.

    Args:
        content_type: the request header, which states the boundary.
        cutter: receives the file.

    Attributes:
        texts: the fields received so far; for the file, its name.

    Raises:
        Fault: 400, also from every method: it is no such form, or too large.
    """

    def __init__(self, content_type: str, cutter: LineCutter) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            text = f"Content-Type is {content_type[:100]!r}; it must be multipart/form-data"
            text += " with a boundary"
            raise Fault(400, text, reason="no form")
        self._cutter = cutter
        self._header = b""
        self._value = b""
        self._name: str | None = None
        self._field: bytearray | None = None
        self._num_parts = 0
        self._has_ended = False
        self.texts: dict[str, str] = {}
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._start_part,
                    "on_header_field": self._append_header,
                    "on_header_value": self._append_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._start_content,
                    "on_part_data": self._append_content,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _unreadable(error) from None

    def feed(self, piece: bytes) -> None:
        """Parse the next bytes of the request."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _unreadable(error) from None

    def end(self) -> None:
        """Check that the form is complete, at the end of the request."""
        if not self._has_ended:
            raise Fault(400, "the form breaks off before its last boundary", reason="no form")

    def _start_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise Fault(400, f"the form has more than {MAX_PARTS} parts", reason="no form")
        self._name, self._field = None, bytearray()

    def _append_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _append_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = _text(options[b"name"]) if b"name" in options else None
            if self._name == "file" and b"filename" in options:
                if "file" in self.texts:
                    raise Fault(400, "the form has several files; one is taken", "file")
                self.texts["file"] = _text(options[b"filename"])
                self._field = None
        self._header = self._value = b""

    def _start_content(self) -> None:
        if self._name is None:
            text = "a part of the form has no name; each must state one in Content-Disposition"
            raise Fault(400, text, reason="no form")

    def _append_content(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._cutter.feed(data[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD_BYTES:
            text = f"the field {ascii(self._name)[:64]} has more than {MAX_FIELD_BYTES} bytes"
            raise Fault(400, text, reason="no form")

    def _end_part(self) -> None:
        if self._field is None:
            self._cutter.end()
        elif self._name is not None and self._name != "file":  # a nameless file counts as missing
            self.texts[self._name] = _text(bytes(self._field))

    def _end(self) -> None:
        self._has_ended = True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _unreadable(error: FormParserError) -> Fault:
    return Fault(400, f"the form cannot be read: {error}", reason="no form")
