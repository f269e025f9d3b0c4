"""PahoLog: paho's log records about its socket, which it reports in no other way."""

from __future__ import annotations

import logging


class PahoLog(logging.Handler):
    """Keeps the last error.

    Attributes:
        logger: the logger for paho.
        error: the last exception that it logged, if any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        # Neither registered nor below another logger: paho's records go nowhere else.
        self.logger = logging.Logger("paho", logging.ERROR)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        for argument in record.args or ():
            if isinstance(argument, BaseException):
                self.error = argument
