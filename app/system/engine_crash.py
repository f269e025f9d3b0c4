"""EngineCrashError: the engine serves nobody any more, so the program that uses it must end."""

from __future__ import annotations

from engine.api.client import EngineClient


class EngineCrashError(RuntimeError):
    """A thread of the engine has ended or hangs. Only a new start of the program helps."""


def check_engine(client: EngineClient) -> None:
    """Check that the engine lives.

    Raises:
        EngineCrashError: it does not; the message says why.
    """
    status = client.status()
    if status.has_crashed:
        raise EngineCrashError(status.detail)
