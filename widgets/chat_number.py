"""ChatNumber: by what a chat is called on the screen, wherever it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase

LETTERS = "123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ChatNumber:
    """The number of a chat on its tab, in the sidebar, in the table, on the KV map and in the log.

    A chat of the user has a number for as long as it exists. A chat that others hold, and a
    request that belongs to no chat, are counted apart, and have capital letters for numbers, so
    that the two never collide: A to Z, then AA and so on. Its colour is `Palette.owner`.

    It is a type of its own and no `int`, so that it is not taken for an ordinal. Those are numbers
    of requests, by the engine, which knows no chats.

    Attributes:
        value: counts from 1.
        theirs: whether the chat is held elsewhere than on this screen.
    """

    value: int
    theirs: bool = False

    def __lt__(self, other: ChatNumber) -> bool:
        """The user's own chats come first."""
        return (self.theirs, self.value) < (other.theirs, other.value)

    @property
    def letter(self) -> str:
        """The chat's sign in one cell of the KV map: 1 to 9, a to z, then from 1 again; of a chat
        that is held elsewhere the last letter of its number."""
        signs = ascii_uppercase if self.theirs else LETTERS
        return signs[(self.value - 1) % len(signs)]

    def __str__(self) -> str:
        if not self.theirs:
            return str(self.value)
        rest = (self.value - 1) // len(ascii_uppercase)
        return (str(ChatNumber(rest, theirs=True)) if rest else "") + self.letter
