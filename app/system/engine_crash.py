"""EngineCrashError: the engine cannot serve any more, so the program that uses it must end."""

from __future__ import annotations

from engine.api.client import EngineClient


class EngineCrashError(RuntimeError):
    """A thread of the engine has ended or hangs. Only a restart of the program helps."""


def check_engine(client: EngineClient) -> None:
    """Check that the engine is alive.

    Raises:
        EngineCrashError: it is not; the message says why.
    """
    status = client.status()
    if status.has_crashed:
        raise EngineCrashError(status.detail)
