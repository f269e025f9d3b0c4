"""ChatName: a chat's number and title, for lines of text."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.chat_number import ChatNumber
from widgets.line import shorten

TITLE_WIDTH = 24


@dataclass(frozen=True, slots=True)
class ChatName:
    """A chat's name on the screen.

    Attributes:
        title: as shown; it begins with the chat's owner, if that is not the user.
    """

    number: ChatNumber
    title: str = ""

    def __str__(self) -> str:
        return f"{self.number} {shorten(self.title, TITLE_WIDTH)}".rstrip()
