"""Shares: slots reserved for users who hold fewer than others, even if they do not wait now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sized

# 1 / LEFT_PART of the slots is reserved for users who hold none: 2 of 32.
LEFT_PART = 16
# As many slots as users asked for within RECENT_SECONDS, beyond those they hold, are reserved for
# them, up to 1 / RECENT_PART of all slots.
RECENT_SECONDS = 10.0
RECENT_PART = 2


class Shares:
    """Bars users from the last slots.

    A reply holds its slot to its end. A user whose chats pause between two requests would lose
    their slots, one by one, to another user's long replies, and queue for the last one.

    Attributes:
        barred: users who get none of the free slots.
    """

    def __init__(self) -> None:
        # The most slots that a user recently held or waited for, and when.
        self._most: dict[str, tuple[int, float]] = {}
        self._taken: Counter[str] = Counter()
        self._slots = 0
        self.barred: frozenset[str] = frozenset()

    def see(
        self, taken: Counter[str], slots: int, waiting: Mapping[str, Sized], now: float
    ) -> None:
        """Update the most slots that each user recently held or waited for.

        Args:
            taken: slots by user.
            slots: how many there are.
            waiting: requests that wait, by user.
            now: seconds.
        """
        self._taken, self._slots = taken, slots
        since = now - RECENT_SECONDS
        for user, running in taken.items():
            count = running + len(waiting.get(user, ()))
            most, at = self._most.get(user, (0, now))
            if count >= most or at < since:
                self._most[user] = count, now
        gone = [user for user, (_, at) in self._most.items() if at < since and user not in taken]
        for user in gone:
            del self._most[user]

    def count(self, user: str, change: int) -> None:
        """Count slots that a user got or lost since `see`."""
        self._taken[user] += change
        self._taken = +self._taken

    def bar(self, free: int, waiting: Container[str]) -> None:
        """Choose the users who get none of the free slots.

        Args:
            waiting: users who wait; the order decides whether they are next.
        """
        self.barred = self._choose(free, waiting)

    def _choose(self, free: int, waiting: Container[str]) -> frozenset[str]:
        """Users who hold a slot, if only a few are free; and those who hold an equal share, if no
        more are free than others recently asked for.
        """
        taken, slots = self._taken, self._slots
        left = slots // LEFT_PART
        if not 0 < free <= slots // RECENT_PART:
            return frozenset()
        if free <= left:
            return frozenset(taken)
        share = max((slots - left) // max(len(self._most.keys() | taken.keys()), 1), 1)
        recent = sum(
            max(min(most, share) - taken.get(user, 0), 0)
            for user, (most, _) in self._most.items()
            if user not in waiting
        )
        if free > left + recent:
            return frozenset()
        return frozenset(user for user, count in taken.items() if count >= share)
