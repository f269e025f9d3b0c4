"""Outbox: holds messages published with QoS 1 until the broker has confirmed them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from app.gateway.mqtt.transport.messages import Outgoing

# Most unconfirmed publishes, unless the broker requires fewer.
WINDOW = 20
# After this time a publish will not be confirmed on this connection.
CONFIRM_SECONDS = 60.0


class Outcome(Enum):
    """The outcome of a publish."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """The broker refused it with a reason code; only MQTT 5 has those."""
    TOO_LARGE = "too large"
    """It is larger than the limit that the broker stated at connect, and was not sent."""
    FULL = "full"
    """Too many messages are pending, and it was not sent."""
    LOST = "lost"
    """There was no connection, or it went before the broker confirmed. In the latter case the
    broker may have the message."""


Confirmation = asyncio.Future[Outcome]


@dataclass(slots=True)
class _Publish:
    """A pending message.

    Attributes:
        confirmation: receives the outcome; None without a waiter.
        written_at: when it was written, in monotonic seconds; 0 before.
        number: numbers the publishes in the order of writing; 0 before.
    """

    message: Outgoing
    confirmation: Confirmation | None
    written_at: float = 0.0
    number: int = 0


class Outbox:
    """Keeps a window of publishes in flight. The rest wait here, in a queue for each flow, and the
    flows take turns (fair queueing; Nagle, RFC 970). So a flood of refusals to one user does not
    delay other users.

    Args:
        write: puts a message into the socket's queue and returns its packet identifier; None if it
            cannot.

    Attributes:
        window: most publishes in flight.
    """

    def __init__(self, write: Callable[[Outgoing], int | None]) -> None:
        self.window = WINDOW
        self._write = write
        self._queues: dict[str, deque[_Publish]] = {}  # the next in turn first
        self._under_way: dict[int, _Publish] = {}
        self._size = 0
        self._sizes: Counter[str] = Counter()
        self._num_written = 0
        self._last_confirmed = 0
        self._confirmed_at = 0.0

    def __len__(self) -> int:
        """The number of unconfirmed publishes."""
        return self._size

    def size(self, flow: str) -> int:
        """The number of unconfirmed publishes of one flow."""
        return self._sizes[flow]

    def add(self, message: Outgoing, confirmation: Confirmation | None) -> None:
        self._size += 1
        self._sizes[message.flow] += 1
        self._queues.setdefault(message.flow, deque()).append(_Publish(message, confirmation))
        self.pump()

    def pump(self) -> None:
        """Write publishes until the window is full."""
        while self._queues and len(self._under_way) < self.window:
            flow = next(iter(self._queues))
            queue = self._queues.pop(flow)
            publish = queue.popleft()
            if queue:
                self._queues[flow] = queue
            identifier = self._write(publish.message)
            if identifier is None:
                self._settle(publish, Outcome.FULL)
                continue
            self._num_written += 1
            publish.number, publish.written_at = self._num_written, time.monotonic()
            self._under_way[identifier] = publish

    def confirm(self, identifier: int, outcome: Outcome) -> Outgoing | None:
        """Settle the publish that the broker has answered; returns its message, or None if it is
        unknown. The caller then calls `pump`."""
        publish = self._under_way.pop(identifier, None)
        if publish is None:
            return None
        self._last_confirmed = publish.number
        self._confirmed_at = time.monotonic()
        self._settle(publish, outcome)
        return publish.message

    def is_owed(self) -> bool:
        """Whether the oldest publish has waited for long and will never be confirmed. That is so if
        nothing was confirmed for long, or if a later one was, because brokers confirm in order
        (MQTT 5, 4.6)."""
        oldest = next(iter(self._under_way.values()), None)
        if oldest is None:
            return False
        since = time.monotonic() - CONFIRM_SECONDS
        was_passed = self._last_confirmed > oldest.number
        return oldest.written_at < since and (was_passed or self._confirmed_at < since)

    def close(self) -> None:
        """Settle all publishes as lost: the connection is gone."""
        left = [*self._under_way.values()]
        for queue in self._queues.values():
            left += queue
        self._under_way, self._queues = {}, {}
        for publish in left:
            self._settle(publish, Outcome.LOST)

    def _settle(self, publish: _Publish, outcome: Outcome) -> None:
        flow = publish.message.flow
        self._size -= 1
        self._sizes[flow] -= 1
        if not self._sizes[flow]:
            del self._sizes[flow]
        settle(publish.confirmation, outcome)


def settle(confirmation: Confirmation | None, outcome: Outcome) -> None:
    """Set the outcome, if there is still a waiter."""
    if confirmation is not None and not confirmation.done():
        confirmation.set_result(outcome)
