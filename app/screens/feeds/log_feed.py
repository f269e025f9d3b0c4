"""LogFeed: collects the records of the program's loggers, for the log panel."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from engine.api.client import Submission
from widgets.panels.log_line import Level, LogLine, Subject

CAPACITY = 500
LONGEST = 1000  # characters; a line may quote what a client sent
_NAMES = ("app", "engine")
_MQTT = "app.gateway.mqtt"


class LogFeed(logging.Handler):
    """Keeps records, which come on any thread, until the screen takes them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[tuple[LogLine, Submission | None]] = deque(maxlen=CAPACITY)

    def attach(self) -> None:
        for name in _NAMES:
            logging.getLogger(name).addHandler(self)

    def detach(self) -> None:
        for name in _NAMES:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = getattr(record, "refusal", "") or record.getMessage()
        except Exception:  # arguments that do not fit the text must not stop the caller
            self.handleError(record)
            return
        source = "mqtt" if record.name.startswith(_MQTT) else record.name.split(".")[0]
        place = bisect_right((logging.INFO, logging.WARNING, logging.ERROR), record.levelno)
        line = LogLine(record.created, Level(place), source, text[:LONGEST])
        self._lines.append((line, getattr(record, "submission", None)))

    def drain(self, of: Callable[[str, str], Subject]) -> list[LogLine]:
        """The lines since the last call, oldest first.

        Args:
            of: gives the chat of a request that was refused, from the ids of both.
        """
        lines = []
        while self._lines:
            line, refused = self._lines.popleft()
            if refused is not None:
                who = of(refused.request_id, refused.origin.conversation)
                text = f"refuse {who.name}: {line.text}"
                line = replace(line, text=text, request_id=refused.request_id, chat=who.chat)
            lines.append(line)
        return lines
