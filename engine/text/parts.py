"""Parts: splits a streamed reply into thinking and content."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from enum import Enum, auto


class Part(Enum):
    """The part of a reply to which a text belongs. Markup separates the parts and is never
    shown."""

    THINKING = auto()
    CONTENT = auto()
    MARKUP = auto()


class Parts(ABC):
    """Reads a reply token by token, and splits its text into thinking and content.

    Two inputs are needed. The part of a character is decided from the text as it is detokenized
    (`read_token`), and a tag split between tokens is held back. Stop strings, which know nothing of
    parts, decide later whether a character is shown at all (`split`). So stop strings match the
    same text as without parts.

    Attributes:
        num_thinking: number of thinking tokens, including its tags.
        closes_unopened: whether the reply has closed thinking that it had not opened.
    """

    def __init__(self) -> None:
        self.num_thinking = 0
        self.closes_unopened = False
        # Segments of the text that are decided but not output, as (part, characters).
        self._decided: deque[tuple[Part, int]] = deque()
        self._certain = ""  # text that is certain to be shown but not output
        self._num_skipped = 0  # how much of its start is never output
        self._thinks = False  # whether the next token is thinking
        self._is_settled = False  # whether all text after the decided segments is content

    @property
    def thinks(self) -> bool:
        """Whether the next token is thinking."""
        return self._thinks

    @property
    def num_undecided(self) -> int:
        """Number of characters that are certain to be shown but not yet assigned to a part."""
        return len(self._certain)

    def read_token(self, token_id: int, text: str) -> None:
        """Read the next token, with its certain text."""
        if self._is_settled:
            return
        if self._thinks:
            self.num_thinking += 1
        self._read(token_id, text)

    def end(self, text: str) -> None:
        """Read the rest of the text, and decide all of it."""
        if not self._is_settled:
            self._read(None, text)
            self._close()

    def split(self, text: str) -> tuple[str, str]:
        """Add the next text that is certain to be shown.

        Returns:
            the thinking and the content that are now certain and decided.
        """
        if not self._decided:
            if self._is_settled:
                return "", text
        elif not self._certain and len(self._decided) == 1 and self._decided[0][1] == len(text):
            part, _ = self._decided.popleft()
            return (text if part is Part.THINKING else ""), (text if part is Part.CONTENT else "")
        found: dict[Part, list[str]] = {part: [] for part in Part}
        certain, start = self._certain + text, 0
        while self._decided and start < len(certain):
            part, length = self._decided.popleft()
            end = min(start + length, len(certain))
            if end - start < length:
                self._decided.appendleft((part, start + length - end))
            found[part].append(certain[max(start, self._num_skipped) : end])
            start = end
        if self._is_settled and not self._decided:
            found[Part.CONTENT].append(certain[max(start, self._num_skipped) :])
            start = len(certain)
        self._certain = certain[start:]
        self._num_skipped = max(0, self._num_skipped - start)
        return "".join(found[Part.THINKING]), "".join(found[Part.CONTENT])

    def skip(self, text: str) -> str:
        """Add the start of a reply that is not sent. None of its tokens count.

        Returns:
            the part of it that is certainly content.
        """
        _, content = self.split(text)
        self._num_skipped, self.num_thinking = len(self._certain), 0
        return content

    def _decide(self, part: Part, length: int) -> None:
        if length:
            self._decided.append((part, length))

    @abstractmethod
    def _read(self, token_id: int | None, text: str) -> None:
        """Decide as much as possible; the token is None for text without one."""

    @abstractmethod
    def _close(self) -> None:
        """Decide the rest."""


class LineParts(Parts):
    """The parts of a reply after `assistant:` in a line of text: leading white space is markup, and
    all else is content.
    """

    def _read(self, token_id: int | None, text: str) -> None:
        self._decide(Part.MARKUP, len(text) - len(text.lstrip()))
        self._is_settled = bool(text.strip())

    def _close(self) -> None:
        pass  # White space alone is markup.
