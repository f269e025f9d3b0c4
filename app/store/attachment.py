"""Attachment: a named text that is sent along with a message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import InvalidRequestError

MAX_BYTES = 4 << 20
_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file, or a pasted text.

    Attributes:
        name: of the file, without its folder, or of the paste.
    """

    name: str
    text: str

    @property
    def told(self) -> str:
        """The attachment in the prompt: its name, and the text in a fence of backticks that is
        longer than any in the text."""
        longest = max((len(found) for found in _FENCE.findall(self.text)), default=2)
        fence = "`" * (longest + 1)
        end = "" if self.text.endswith("\n") else "\n"
        return f"{self.name}:\n{fence}\n{self.text}{end}{fence}"


def read_attachment(path: Path) -> Attachment:
    """The text of a file.

    Raises:
        InvalidRequestError: it is no text, too large, or cannot be read; the message names it.
    """
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is no file"
            raise InvalidRequestError(f"{path} {what}; a text file can be attached", "attachment")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
            size = max(path.stat().st_size, len(data))
    except OSError as error:
        raise InvalidRequestError(f"{path}: {error.strerror or error}", "attachment") from None
    if len(data) > MAX_BYTES:
        raise InvalidRequestError(
            f"{path} has {size:,} bytes; at most {MAX_BYTES:,} can be attached", "attachment"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_text(path, size, error.start) from None
    if "\0" in text:
        raise _no_text(path, size, text.index("\0"))
    if not text.strip():
        raise InvalidRequestError(f"{path} is empty; a text file can be attached", "attachment")
    return Attachment(path.name, text)


def _no_text(path: Path, size: int, place: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path} ({size:,} bytes) is no text: byte {place:,} is not of UTF-8; a text file can be"
        " attached",
        "attachment",
    )


def told_with(content: str, attachments: tuple[Attachment, ...]) -> str:
    """A message in the prompt: its attachments, and then its text."""
    return "\n\n".join((*(attachment.told for attachment in attachments), content)).strip("\n")
