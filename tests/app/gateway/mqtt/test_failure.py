"""The gateway's thread fails: who waits for it, and whose requests it had, must not be left so."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from tests.support.mqtt_peer import Peer
from tests.support.mqtt_serving import Serving


class Unforeseen(BaseException):
    """Neither an Exception nor one of those that asyncio lets pass."""


ERRORS = [MemoryError, Unforeseen, SystemExit, KeyboardInterrupt]


def raising(error: type[BaseException]) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error("no more of it")

    return fail


def check_it_ended(served: Serving, error: type[BaseException]) -> None:
    assert served.gateway.wait_ended(5.0)
    assert served.gateway.failure == f"{error.__name__}: no more of it"
    served.stop(0.0)
    assert not served.gateway._thread.is_alive()
    served.run(lambda: not served.engine.snapshot().num_running)  # type: ignore[union-attr]


@pytest.mark.parametrize("error", ERRORS)
def test_a_task_that_fails_ends_it(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    alice.ask("1", "tell me all of it")
    served.accepted(1)
    served.engine.advance(2)
    monkeypatch.setattr(served.gateway._node, "update", raising(error))
    check_it_ended(served, error)


@pytest.mark.parametrize("error", ERRORS)
def test_a_callback_that_fails_ends_it(
    served: Serving, alice: Peer, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Pending output is lost with the callback; the requests would never end."""
    alice.ask("1", "tell me all of it")
    served.accepted(1)
    monkeypatch.setattr(served.gateway._exchanges, "_send_delta", raising(error))
    served.engine.advance(2)
    check_it_ended(served, error)
