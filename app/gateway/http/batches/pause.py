"""pause: waits for an event, up to a timeout."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Return when an event is set, or after so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
