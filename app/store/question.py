"""Question: checks a message of the user, and makes the conversation's title from it."""

from __future__ import annotations

from app.store.attachment import told_with
from app.store.conversation import Message
from engine.api.errors import InvalidRequestError

TITLE_LENGTH = 60


def check_question(question: Message) -> None:
    """
    Raises:
        InvalidRequestError: the text is empty or invalid Unicode.
    """
    text = told_with(question.content, question.attachments)
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
