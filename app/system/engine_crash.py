"""EngineCrashError: the engine serves nobody any more, so the program that it is for ends."""

from __future__ import annotations

from engine.api.client import EngineClient


class EngineCrashError(RuntimeError):
    """A thread of the engine has ended, or hangs; a new start of the program is what helps."""


def check_engine(client: EngineClient) -> None:
    """See that the engine lives.

    Raises:
        EngineCrashError: it does not, and why.
    """
    status = client.status()
    if status.has_crashed:
        raise EngineCrashError(status.detail)
