"""TwinWatch: notices another program with our client identifier if the broker does not report it.

MQTT 5 has a reason code for this case, but Mosquitto 2.0.11 does not send it, and 3.1.1 has none.
But the wills of both programs, and the cards that both publish, are retained at one topic.
"""

from __future__ import annotations

import asyncio
from collections import deque

from app.gateway.mqtt.transport.messages import Inbound, Outgoing

# How long to wait after subscribing for the retained message, once there is a suspicion.
WAIT_SECONDS = 0.5
# How often in a row a foreign message must be seen. Once may be an old message that the broker read
# from its disk when it was restarted.
ENOUGH = 2
_OWN_KEPT = 32


class TwinWatch:
    """Checks, at each connection after the first, the retained message at the will's topic. If it
    is not ours, another program was connected in our place.

    The older of two programs notices first, because it was disconnected first, and yields.

    Attributes:
        topic: the topic to subscribe to; None if there is no will or it is not retained. The
            subscription has QoS 0, so that none of it is kept in the session, which twins share.
    """

    def __init__(self, will: Outgoing | None) -> None:
        self.topic = will.topic if will is not None and will.retain else None
        self._own = deque([will.payload] if will is not None else [], maxlen=_OWN_KEPT)
        self._seen = asyncio.Event()
        self.reset()

    def reset(self) -> None:
        """Reset, at a start or at a requested reconnect. Then we do not yield at the first
        connection."""
        self._is_first = True
        self._times_seen = 0
        self._seen.clear()

    def publishes(self, message: Outgoing) -> None:
        """Record a message that we publish."""
        if message.topic == self.topic:
            self._own.append(message.payload)

    def receives(self, message: Inbound) -> bool:
        """Check a received message; returns whether it came for this watch only."""
        if message.topic != self.topic or message.acknowledge is not None:
            return False
        if message.retained and message.payload and not self._seen.is_set():
            self._seen.set()
            is_foreign = message.payload not in self._own
            self._times_seen = self._times_seen + 1 if is_foreign and not self._is_first else 0
        return True

    async def found(self) -> bool:
        """Whether there is a twin. Call this after subscribing and before publishing anything."""
        if self._times_seen == ENOUGH - 1 and not self._seen.is_set():
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._seen.wait()
            except TimeoutError:
                self._times_seen = 0
        return self._times_seen >= ENOUGH

    def lost(self, lasting: bool) -> None:
        """Record that the connection has gone.

        Args:
            lasting: whether it lasted long enough for a twin to have returned meanwhile.
        """
        self._is_first = False
        self._seen.clear()
        if lasting:
            self._times_seen = 0
