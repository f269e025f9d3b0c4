"""Shares: slots that are left to users who have fewer than others, though they do not wait now."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sized

# So much of the slots is for users who have none: 2 of 32.
LEFT_PART = 16
# What users asked for within so many seconds, and have no more, is left to them, of so much of the
# slots.
RECENT_SECONDS = 10.0
RECENT_PART = 2


class Shares:
    """Bars users from the last slots.

    A reply holds its slot to its end. Chats of one user that pause between two requests would give
    their slots up, one by one, to another's long replies, and queue for the one that is left.
    """

    def __init__(self) -> None:
        # The most slots that a user had or waited for of late, and when that was.
        self._most: dict[str, tuple[int, float]] = {}

    def see(self, taken: Mapping[str, int], waiting: Mapping[str, Sized], now: float) -> None:
        """
        Args:
            taken: slots by user.
            waiting: requests that wait, by user.
            now: seconds.
        """
        since = now - RECENT_SECONDS
        for user, running in taken.items():
            count = running + len(waiting.get(user, ()))
            most, at = self._most.get(user, (0, now))
            if count >= most or at < since:
                self._most[user] = count, now
        gone = [user for user, (_, at) in self._most.items() if at < since and user not in taken]
        for user in gone:
            del self._most[user]

    def barred(
        self, taken: Mapping[str, int], free: int, slots: int, waiting: Container[str]
    ) -> frozenset[str]:
        """Users who get none of the slots that are free: those who have one, where but a few are
        left; and those who have an equal share, where no more are free than others asked for of
        late.

        Args:
            waiting: users who wait; the order knows whether they are next.
        """
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
