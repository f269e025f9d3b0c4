"""LogFeed: collects what the program's loggers say, for the log panel."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque

from widgets.panels.log_line import Level, LogLine

CAPACITY = 500
LONGEST = 1000  # characters; a line may quote what a client sent
_NAMES = ("app", "engine")
_MQTT = "app.gateway.mqtt"


class LogFeed(logging.Handler):
    """Keeps records, which come on any thread, until the screen takes them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[LogLine] = deque(maxlen=CAPACITY)

    def attach(self) -> None:
        for name in _NAMES:
            logging.getLogger(name).addHandler(self)

    def detach(self) -> None:
        for name in _NAMES:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # arguments that do not fit the text must not stop whoever logs
            self.handleError(record)
            return
        source = "mqtt" if record.name.startswith(_MQTT) else record.name.split(".")[0]
        place = bisect_right((logging.INFO, logging.WARNING, logging.ERROR), record.levelno)
        self._lines.append(LogLine(record.created, Level(place), source, text[:LONGEST]))

    def take(self) -> list[LogLine]:
        """What came since the last call, oldest first."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines
