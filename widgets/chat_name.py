"""ChatName: a chat's number and title, as lines of text have them."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.chat_number import ChatNumber
from widgets.line import shorten

TITLE_WIDTH = 24


@dataclass(frozen=True, slots=True)
class ChatName:
    """What a chat is called on the screen.

    Attributes:
        title: as a person sees it; it begins with whoever holds the chat, if that is not the user.
    """

    number: ChatNumber
    title: str = ""

    def __str__(self) -> str:
        return f"{self.number} {shorten(self.title, TITLE_WIDTH)}".rstrip()
