"""Quota and Quotas: each user's limits on the server, and their current use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from app.gateway.faults import Fault

# Retry delay while the pace is not known: a guess that prevents clients from retrying in a loop.
DEFAULT_RETRY_SECONDS = 1.0
MIN_RETRY_SECONDS = 0.25
MAX_RETRY_SECONDS = 60.0
# Bytes of one user that are read. The bucket holds 32 of the largest requests: each takes up to 20
# ms on the loop that serves everybody.
READ_BYTES_PER_SECOND = 1 << 19
MAX_READ_BYTES = 1 << 23
_USERS_KEPT = 1000


class Quota(BaseModel):
    """The limits of one user.

    Attributes:
        requests: most unfinished requests at once.
        per_minute: most requests that may begin in a minute; 0 is no limit.
        max_priority: upper limit of a request's priority, whatever it states.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: PositiveInt = 16
    per_minute: NonNegativeInt = 0
    max_priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)


@dataclass(slots=True)
class _User:
    """One user's unfinished requests, and the state of their buckets.

    Attributes:
        open: unfinished requests.
        bucket: requests that may begin now.
        bytes: bytes that may be read now.
        filled_at: when the buckets were last filled, in monotonic seconds.
    """

    open: int = 0
    bucket: float = 0.0
    bytes: float = MAX_READ_BYTES
    filled_at: float = 0.0


class Quotas:
    """Counts each user's unfinished requests, with two token buckets for each: for requests a
    minute, and for bytes a second.

    Args:
        default: the quota of users who have none in `users`.
        users: quotas by user.
        pace: returns the seconds until the next request is likely to end; None if not known.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        default: Quota,
        users: Mapping[str, Quota],
        pace: Callable[[], float | None],
        clock: Callable[[], float],
    ) -> None:
        self._default = default
        self._quotas = users
        self._pace = pace
        self._clock = clock
        self._users: dict[str, _User] = {}
        self._most_users = _USERS_KEPT

    def of(self, user: str) -> Quota:
        return self._quotas.get(user, self._default)

    def priority(self, user: str, wanted: int) -> int:
        """The priority of a user's request: as wanted, up to the user's limit."""
        return min(wanted, self.of(user).max_priority)

    def check(self, user: str, count: int = 1) -> None:
        """Check that a user may begin `count` more requests.

        Raises:
            Fault: 429; the user has reached the limit of unfinished requests, or of new requests in
                a minute.
        """
        quota, state = self.of(user), self._state(user)
        if state.open + count > quota.requests:
            message = f"user {user!r} has {state.open} unfinished requests; at most"
            message += f" {quota.requests} are allowed"
            raise self.overloaded(message, "user over quota")
        if quota.per_minute and state.bucket < count:
            message = f"user {user!r} may send {quota.per_minute} requests a minute and sent more"
            wait = (count - state.bucket) * 60.0 / quota.per_minute
            raise self.overloaded(message, "user over rate", wait)

    def read(self, user: str, size: int) -> None:
        """Count bytes of this user that are about to be read, whether they are a request or not.

        Raises:
            Fault: 429; the user sent more than the limit of bytes.
        """
        state = self._state(user)
        if state.bytes < size:
            message = f"user {user!r} sends more than {READ_BYTES_PER_SECOND} bytes a second"
            wait = (size - state.bytes) / READ_BYTES_PER_SECOND
            raise self.overloaded(message, "user over bytes", wait)
        state.bytes -= size

    def overloaded(
        self, message: str, reason: str, wait: float | None = None, depth: int | None = None
    ) -> Fault:
        """A 429 that says when to retry: after `wait` seconds, or, if that is None, when the next
        request is likely to end.

        Args:
            reason: the kind of fault in a few words.
            depth: the number of waiting requests, if that is why.
        """
        wait = wait if wait is not None else self._pace() or DEFAULT_RETRY_SECONDS
        seconds = min(max(wait, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)
        return Fault(
            429,
            message,
            reason=reason,
            retry_after_ms=math.ceil(seconds * 1000),
            queue_depth=depth,
        )

    def opened(self, user: str) -> None:
        """Count an accepted request of this user."""
        state = self._state(user)
        state.open += 1
        if self.of(user).per_minute:
            state.bucket -= 1.0

    def ended(self, user: str) -> None:
        """Count the end of a request of this user."""
        self._users[user].open -= 1

    def _state(self, user: str) -> _User:
        now, quota = self._clock(), self.of(user)
        most = float(quota.per_minute)
        state = self._users.get(user)
        if state is None:
            self._prune()
            state = self._users[user] = _User(bucket=most, filled_at=now)
        state.bucket = min(most, state.bucket + (now - state.filled_at) * most / 60.0)
        refilled = state.bytes + (now - state.filled_at) * READ_BYTES_PER_SECOND
        state.bytes = min(MAX_READ_BYTES, refilled)
        state.filled_at = now
        return state

    def _prune(self) -> None:
        """Drop users who have no open requests and full buckets: clients may invent user names."""
        if len(self._users) > self._most_users:
            kept = {user: self._state(user) for user in tuple(self._users)}
            self._users = {
                user: state
                for user, state in kept.items()
                if state.open
                or state.bucket < self.of(user).per_minute
                or state.bytes < MAX_READ_BYTES
            }
            # The next pruning comes at twice as many users. Otherwise each new user would cost a
            # pass over all of them.
            self._most_users = max(_USERS_KEPT, 2 * len(self._users))
