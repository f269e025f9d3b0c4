"""SessionNumber: by what a session is called on the screen."""

from __future__ import annotations

from dataclasses import dataclass

LETTERS = "123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, order=True)
class SessionNumber:
    """The number of a session on its tab, in the session table and on the KV map. It counts from 1.

    It is a type of its own and no `int`, so that it is not taken for an ordinal. Those are numbers
    of requests, by the engine, which knows no sessions.
    """

    value: int

    @property
    def letter(self) -> str:
        """The session's sign on the KV map: 1 to 9, a to z, then from 1 again."""
        return LETTERS[(self.value - 1) % len(LETTERS)]

    def __str__(self) -> str:
        return str(self.value)
