"""Question: a user's message. Reads its attachments, checks it, and derives a chat's title from
it."""

from __future__ import annotations

from pathlib import Path

from app.store.conversation import Attachment, Message, with_attachments
from engine.api.errors import InvalidRequestError

TITLE_LENGTH = 60
MAX_BYTES = 4 << 20  # of an attachment


def check_question(question: Message) -> None:
    """
    Raises:
        InvalidRequestError: the text is empty or invalid Unicode.
    """
    text = with_attachments(question.content, question.attachments)
    if not text.strip():
        raise InvalidRequestError("the prompt is empty; it must have some text", "prompt")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the prompt has half a surrogate pair at character {error.start}; it must be"
            " valid Unicode",
            "prompt",
        ) from None


def title_from(question: Message) -> str:
    """A title of one line from the first message, cut at a word boundary."""
    text = question.content or next((file.name for file in question.attachments), "")
    words = " ".join(text.split())
    if len(words) <= TITLE_LENGTH:
        return words
    return words[:TITLE_LENGTH].rsplit(" ", 1)[0] + "…"


def read_attachment(path: Path) -> Attachment:
    """The text of a file.

    Raises:
        InvalidRequestError: it is no text, too large, or cannot be read; the message names it.
    """
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is not a file"
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
        raise InvalidRequestError(f"{path} is empty; only text files can be attached", "attachment")
    return Attachment(path.name, text)


def _no_text(path: Path, size: int, place: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path} ({size:,} bytes) is not text: byte {place:,} is not of UTF-8; a text file can be"
        " attached",
        "attachment",
    )
