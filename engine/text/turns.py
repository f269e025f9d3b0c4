"""Turns: decides which of many waiting users is served next."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996, section 2) of users with equal shares.

    The waiting user who has used least is served next, so that a short item does not wait for the
    long ones of other users. A user's items are served one at a time, in order of arrival.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Item, int]]] = {}
        self._served: set[str] = set()
        self._tags: dict[str, int] = {}  # usage of each user; a new user begins at `_now`
        self._now = 0  # the tag of the item that was taken last

    def put(self, user: str, item: Item, cost: int) -> None:
        """Queue an item that uses `cost` units of the shared resource."""
        if user not in self._waiting:
            self._waiting[user] = deque()
            self._tags[user] = max(self._tags.get(user, 0), self._now)
        self._waiting[user].append((item, cost))

    def pop(self) -> tuple[str, Item] | None:
        """Remove and return the next item, with its user; None while no user may be served."""
        ready = [user for user in self._waiting if user not in self._served]
        if not ready:
            return None
        user = min(ready, key=self._tags.__getitem__)  # of equals, the one who came first
        item, cost = self._waiting[user].popleft()
        if not self._waiting[user]:
            del self._waiting[user]
        self._served.add(user)
        self._now = self._tags[user]
        self._tags[user] += cost
        return user, item

    def end(self, user: str) -> None:
        """Record that the user's item has been served, so that their next one may be."""
        self._served.remove(user)
        if not self._waiting and not self._served:
            self._tags.clear()
            self._now = 0
