"""TwinWatch: notices another program under our client identifier where the broker does not tell.

MQTT 5 has a reason code for this case, but Mosquitto 2.0.11 does not send it, and 3.1.1 has none.
But the wills of both programs, and the cards that both publish, are retained at one topic.
"""

from __future__ import annotations

import asyncio
from collections import deque

from app.gateway.mqtt.transport.messages import Inbound, Outgoing

# How long to wait after the subscription for what the broker has retained, once there is a
# suspicion.
WAIT_SECONDS = 0.5
# How often in a row something foreign must be seen. Once may be an old message that the broker read
# from its disk when it was restarted.
ENOUGH = 2
_OWN_KEPT = 32


class TwinWatch:
    """Looks, at each connection after the first, at the message that is retained at the will's
    topic. If it is not ours, somebody was connected in our place.

    The older of two programs finds out first, since it was disturbed first, and yields.

    Attributes:
        topic: the topic to subscribe to; None if there is no will or it is not retained. The
            subscription has QoS 0, so that nothing of it is kept in the session, which twins share.
    """

    def __init__(self, will: Outgoing | None) -> None:
        self.topic = will.topic if will is not None and will.retain else None
        self._own = deque([will.payload] if will is not None else [], maxlen=_OWN_KEPT)
        self._seen = asyncio.Event()
        self.begin()

    def begin(self) -> None:
        """Start anew, when we are started or told to come back. Then we do not yield at the first
        connection."""
        self._is_first = True
        self._times_seen = 0
        self._seen.clear()

    def publishes(self, message: Outgoing) -> None:
        """Note a message that we publish."""
        if message.topic == self.topic:
            self._own.append(message.payload)

    def receives(self, message: Inbound) -> bool:
        """Look at a message that came; returns whether it came for this watch only."""
        if message.topic != self.topic or message.acknowledge is not None:
            return False
        if message.retained and message.payload and not self._seen.is_set():
            self._seen.set()
            is_foreign = message.payload not in self._own
            self._times_seen = self._times_seen + 1 if is_foreign and not self._is_first else 0
        return True

    async def found(self) -> bool:
        """Whether there is a twin. This is asked after subscribing and before anything is
        published."""
        if self._times_seen == ENOUGH - 1 and not self._seen.is_set():
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._seen.wait()
            except TimeoutError:
                self._times_seen = 0
        return self._times_seen >= ENOUGH

    def lost(self, lasting: bool) -> None:
        """Note that the connection has gone.

        Args:
            lasting: whether it stood long enough for a twin to have come back meanwhile.
        """
        self._is_first = False
        self._seen.clear()
        if lasting:
            self._times_seen = 0
