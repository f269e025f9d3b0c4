"""ListCursor: the item of a list that the keys act on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ListCursor(Generic[Item]):
    """A cursor that stays on its item when items come, go or move.

    Args:
        key_of: returns the key that identifies an item.
        start: the cursor's place while it has not been put on an item: 0, or -1 for none.

    Attributes:
        items: the current items.
        key: the key of the item under the cursor; None at the start.
    """

    def __init__(self, key_of: Callable[[Item], Hashable], start: int = 0) -> None:
        self.items: Sequence[Item] = ()
        self.key: Hashable = None
        self._key_of = key_of
        self._start = start

    @property
    def place(self) -> int:
        places = (i for i, item in enumerate(self.items) if self._key_of(item) == self.key)
        return next(places, self._start)

    @property
    def item(self) -> Item | None:
        place = self.place
        return self.items[place] if 0 <= place < len(self.items) else None

    def go_to(self, place: int) -> bool:
        """Move to a place, clamped to the items; returns whether the cursor is on another item
        now."""
        if not self.items:
            return False
        place = max(self._start, min(place, len(self.items) - 1))
        key = self._key_of(self.items[place]) if place >= 0 else None
        changed, self.key = key != self.key, key
        return changed
