"""PahoLog: what paho logs about its socket, which it tells in no other way."""

from __future__ import annotations

import logging


class PahoLog(logging.Handler):
    """Keeps the last error.

    Attributes:
        logger: for paho to log to.
        error: the exception that it logged last, if any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        # Neither registered nor below another: what paho says goes nowhere else.
        self.logger = logging.Logger("paho", logging.ERROR)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        for argument in record.args or ():
            if isinstance(argument, BaseException):
                self.error = argument
