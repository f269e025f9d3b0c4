"""Tally: the gateway's counters, for the panel and for the metrics."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

from app.gateway.faults import Fault
from app.gateway.view import BadMessage, Rejection, Used, UserView
from engine.api.stream import Usage
from engine.api.telemetry import Distribution, Samples

log = logging.getLogger(__name__)

WINDOW = 60.0
# Seconds between two log lines about one source.
SOURCE_SECONDS = 60.0
_SOURCES_KEPT = 1000
BAD_KEPT = 20
EXCERPT_BYTES = 200
# Characters kept of a topic: enough for all levels of a request's topic. Any topic may have 65,535
# bytes.
TOPIC_LENGTH = 600
_USERS_KEPT = 1000
USERS_SHOWN = 20
OTHERS = "(other users)"


class Tally:
    """Counts the outcomes of requests.

    Args:
        clock: monotonic seconds.

    Attributes:
        accepted, finished: the number of requests accepted and ended since the start.
        rejected_by_user: the number of refused requests by user. Only the most recently refused
            users are kept.
        used: replies and tokens by user, since the start. All users behind the first thousand are
            one, `OTHERS`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rejected: Counter[tuple[int, str]] = Counter()
        self._bad: deque[BadMessage] = deque(maxlen=BAD_KEPT)
        self._first_tokens = Samples()
        self._ends: deque[float] = deque(maxlen=64)
        # When each source was logged last, and how many lines were dropped since; the latest source
        # comes last.
        self._sources: dict[str, tuple[float, int]] = {}
        self.accepted = 0
        self.finished = 0
        self.rejected_by_user: dict[str, int] = {}
        self.used: dict[str, Used] = {}

    def ended(self) -> None:
        self.finished += 1
        self._ends.append(self._clock())

    def count_reply(self, user: str, usage: Usage) -> None:
        """Count a reply and its tokens for its user."""
        if user not in self.used and len(self.used) >= _USERS_KEPT:
            user = OTHERS
        before = self.used.get(user, Used())
        self.used[user] = Used(
            before.replies + 1,
            before.prompt_tokens + usage.prompt_tokens,
            before.cached_tokens + usage.cached_tokens,
            before.output_tokens + usage.completion_tokens,
        )

    def first_token(self, seconds: float) -> None:
        """Record the first token of a request, so many seconds after it was published."""
        self._first_tokens.add(self._clock(), seconds)

    def refused(self, fault: Fault, user: str) -> None:
        self._rejected[fault.code, fault.reason] += 1
        count = self.rejected_by_user.pop(user, 0) + 1
        self.rejected_by_user[user] = count
        if len(self.rejected_by_user) > _USERS_KEPT:
            del self.rejected_by_user[next(iter(self.rejected_by_user))]

    def denied(self, fault: Fault, address: str) -> None:
        """Count a request that no honest client sends: its key is wrong, or it is not HTTP. The log
        gets one line a minute for each source."""
        source, now = _source(address), self._clock()
        logged_at, left_out = self._sources.pop(source, (-SOURCE_SECONDS, 0))
        if now >= logged_at + SOURCE_SECONDS:
            more = f"; and {left_out} times before, since its last line" if left_out else ""
            log.warning("%s is refused: %s%s", source, fault.message, more)
            logged_at, left_out = now, -1
        self._sources[source] = logged_at, left_out + 1
        if len(self._sources) > _SOURCES_KEPT:
            del self._sources[next(iter(self._sources))]

    def bad(self, topic: str, payload: bytes, code: int, reason: str) -> None:
        """Record a message that was no request, or cannot be parsed."""
        excerpt = payload[:EXCERPT_BYTES].decode("utf-8", "replace")
        message = BadMessage(time.time(), topic[:TOPIC_LENGTH], code, reason, excerpt)
        self._bad.appendleft(message)

    def pace(self) -> float | None:
        """The mean seconds between the last endings; None if there are too few."""
        now = self._clock()
        recent = [end for end in self._ends if end > now - WINDOW]
        return (now - recent[0]) / len(recent) if len(recent) > 1 else None

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The number of refused requests by reason, the most frequent first."""
        return tuple(
            Rejection(code, reason, count) for (code, reason), count in self._rejected.most_common()
        )

    def users(self, running: Iterable[tuple[str, bool]]) -> tuple[UserView, ...]:
        """Users with requests here, or with refused ones, the busiest first.

        Args:
            running: the user of each unfinished request, and whether it has a first token.
        """
        live: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for user, started in running:
            live[user] += 1
            waiting[user] += not started
        rejected = self.rejected_by_user
        busiest = sorted({*live, *rejected}, key=lambda user: (-live[user], user))
        return tuple(
            UserView(user, live[user], waiting[user], rejected.get(user, 0))
            for user in busiest[:USERS_SHOWN]
        )

    @property
    def bad_messages(self) -> tuple[BadMessage, ...]:
        return tuple(self._bad)

    @property
    def first_tokens(self) -> Distribution:
        """Seconds from publish to first token, over the last minute."""
        return self._first_tokens.over(self._clock() - WINDOW)


def _source(address: str) -> str:
    """The source of an address: in IPv6 one customer has 2**64 of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
