"""DrivingStream: news of a request from an engine that runs when it is told to."""

from __future__ import annotations

from collections.abc import Callable

from engine.api.stream import RequestStream


class DrivingStream(RequestStream):
    """A stream whose reader advances the engine instead of waiting for another thread to."""

    def __init__(
        self, request_id: str, wake: Callable[[], None] | None, advance: Callable[[], int]
    ) -> None:
        super().__init__(request_id, wake)
        self._advance = advance

    def wait(self, timeout: float | None = None) -> bool:
        while not super().wait(0):
            if not self._advance():
                assert timeout is not None, "this stream will never have news"
                return False
        return True
