"""Ending: stops the replies and shuts the engine down, while the screen stays alive."""

from __future__ import annotations

import asyncio
import logging
import threading

from app.screens.chats.sessions import SessionList
from engine.api.client import EngineClient

log = logging.getLogger(__name__)

STOP_SECONDS = 3.0
SHUTDOWN_SECONDS = 12.0


class Ending:
    """The steps before the end of the application.

    Attributes:
        has_begun: whether the end was requested.
        is_complete: whether the engine was shut down in time.
    """

    def __init__(self, client: EngineClient, sessions: SessionList) -> None:
        self.has_begun = False
        self.is_complete = False
        self._client = client
        self._sessions = sessions

    @property
    def news(self) -> str:
        """A sentence for the user about the current step."""
        num_busy = self._sessions.num_own_busy
        replies = "the reply" if num_busy == 1 else f"{num_busy} replies"
        stopping = f"Stopping {replies}; their text so far is kept. " if num_busy else ""
        return f"{stopping}Ending the engine…"

    async def run(self) -> None:
        """Stop the replies, for at most `STOP_SECONDS`, and end the engine."""
        self.has_begun = True
        self._sessions.stop_all()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_SECONDS
        while self._sessions.num_own_busy and loop.time() < deadline:
            self._sessions.poll()
            await asyncio.sleep(0.02)
        self._sessions.close_all()
        await self._end_engine()

    def complete(self) -> None:
        """Store every reply and shut the engine down, if `run` has not done so."""
        self._sessions.close_all()
        if not self.is_complete:
            self._client.shutdown()

    async def _end_engine(self) -> None:
        """Shut the engine down on a thread, for at most `SHUTDOWN_SECONDS`."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            try:
                self._client.shutdown()
            finally:
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=shut_down, name="shutdown", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), SHUTDOWN_SECONDS)
            self.is_complete = True
        except TimeoutError:
            log.error("the engine did not end within %g s", SHUTDOWN_SECONDS)
