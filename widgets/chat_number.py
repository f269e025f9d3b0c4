"""ChatNumber and ChatName: a chat's number and title, the same everywhere on the screen."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase

from widgets.line import shorten

LETTERS = "123456789abcdefghijklmnopqrstuvwxyz"
TITLE_WIDTH = 24


@dataclass(frozen=True, slots=True)
class ChatNumber:
    """The number of a chat on its tab, in the sidebar, in the table, on the KV map and in the log.

    A chat of the user has a number for as long as it exists. Chats of others, and requests without
    a chat, are counted separately, and have capital letters for numbers, so that the two never
    collide: A to Z, then AA and so on. Its colour is `Palette.owner`.

    It is a separate type and not an `int`, so that it is not confused with an ordinal. Those are
    the engine's numbers of requests; the engine knows no chats.

    Attributes:
        value: counts from 1.
        theirs: whether the chat belongs to another front end than this screen.
    """

    value: int
    theirs: bool = False

    def __lt__(self, other: ChatNumber) -> bool:
        """The user's own chats come first."""
        return (self.theirs, self.value) < (other.theirs, other.value)

    @property
    def letter(self) -> str:
        """The chat's sign in one cell of the KV map: 1 to 9, a to z, then from 1 again; for a chat
        of another front end the last letter of its number."""
        signs = ascii_uppercase if self.theirs else LETTERS
        return signs[(self.value - 1) % len(signs)]

    def __str__(self) -> str:
        if not self.theirs:
            return str(self.value)
        rest = (self.value - 1) // len(ascii_uppercase)
        return (str(ChatNumber(rest, theirs=True)) if rest else "") + self.letter


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
