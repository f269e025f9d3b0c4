"""HeldTop: the end of an axis, which stays stable while its values vary."""

from __future__ import annotations

HELD_SECONDS = 10.0


class HeldTop:
    """Grows at once, and shrinks after `HELD_SECONDS` in which less was enough, to the maximum
    needed during that time."""

    def __init__(self) -> None:
        self._top = 0.0
        self._since = 0.0  # when all of it was needed last
        self._less = 0.0  # the maximum needed since

    def of(self, needed: float, now: float) -> float:
        """The current end of the axis.

        Args:
            needed: where it would end by itself; 0 without values.
            now: seconds. Another engine's clock may begin anew.
        """
        self._less = max(self._less, needed)
        is_held = 0 <= now - self._since <= HELD_SECONDS
        if needed >= self._top or (self._less and not is_held):
            self._top, self._since, self._less = self._less, now, 0.0
        return self._top
