"""Tally: what the gateway counts, for the panel and for the metrics."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

from app.gateway.faults import Fault
from app.gateway.view import BadMessage, Rejection
from engine.api.telemetry import Distribution, Samples

WINDOW = 60.0
BAD_KEPT = 20
EXCERPT_BYTES = 200
# Characters kept of a topic: room for all levels of a request's topic. Any topic may have 65,535
# bytes.
TOPIC_LENGTH = 600
_USERS_KEPT = 1000


class Tally:
    """Counts what becomes of requests.

    Args:
        clock: monotonic seconds.

    Attributes:
        accepted, finished: how many requests were accepted and have ended since the start.
        rejected_by_user: for each user, how many requests were refused. Only the users to whom that
            happened last are kept.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rejected: Counter[tuple[int, str]] = Counter()
        self._bad: deque[BadMessage] = deque(maxlen=BAD_KEPT)
        self._first_tokens = Samples()
        self._ends: deque[float] = deque(maxlen=64)
        self.accepted = 0
        self.finished = 0
        self.rejected_by_user: dict[str, int] = {}

    def ended(self) -> None:
        self.finished += 1
        self._ends.append(self._clock())

    def first_token(self, seconds: float) -> None:
        """A request got its first token, so many seconds after it was published."""
        self._first_tokens.add(self._clock(), seconds)

    def refused(self, fault: Fault, user: str) -> None:
        self._rejected[fault.code, fault.reason] += 1
        count = self.rejected_by_user.pop(user, 0) + 1
        self.rejected_by_user[user] = count
        if len(self.rejected_by_user) > _USERS_KEPT:
            del self.rejected_by_user[next(iter(self.rejected_by_user))]

    def bad(self, topic: str, payload: bytes, code: int, reason: str) -> None:
        """A message came that was no request, or one that cannot be read."""
        excerpt = payload[:EXCERPT_BYTES].decode("utf-8", "replace")
        message = BadMessage(time.time(), topic[:TOPIC_LENGTH], code, reason, excerpt)
        self._bad.appendleft(message)

    def pace(self) -> float | None:
        """The mean number of seconds between the last endings; None if they are too few to tell."""
        now = self._clock()
        recent = [end for end in self._ends if end > now - WINDOW]
        return (now - recent[0]) / len(recent) if len(recent) > 1 else None

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """How many requests were refused for each reason, the most frequent first."""
        return tuple(
            Rejection(code, reason, count) for (code, reason), count in self._rejected.most_common()
        )

    @property
    def bad_messages(self) -> tuple[BadMessage, ...]:
        return tuple(self._bad)

    @property
    def first_tokens(self) -> Distribution:
        """Seconds from publish to first token, over the last minute."""
        return self._first_tokens.over(self._clock() - WINDOW)
