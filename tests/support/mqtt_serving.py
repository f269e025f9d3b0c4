"""Serving: a gateway over a scripted engine, whose time passes when told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.gateway.mqtt import gateway
from app.gateway.mqtt.gateway import MqttGateway
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import LinkPhase
from engine.api.client import ChatMessage, Submission
from engine.api.stream import RequestStream
from tests.support.driving import TIMEOUT, Driving
from tests.support.scripted_engine import ScriptedEngine


class Serving(Driving):
    """
    Args:
        port: of a broker, or of a proxy before it, on the loopback.
        login: user and password.
    """

    def __init__(
        self,
        port: int,
        folder: Path,
        engine: ScriptedEngine | None = None,
        login: str | None = None,
        **settings: Any,
    ) -> None:
        self.engine = engine or ScriptedEngine()
        url = f"mqtt://{f'{login}:{login}@' if login else ''}127.0.0.1:{port}"
        values = {"node": "box", "delta_ms": 0, "drain_seconds": 0.0, **settings}
        self.gateway = MqttGateway(
            self.engine,
            MqttSettings(url=f"mqtt://127.0.0.1:{port}", **values),
            BrokerAddress.parse(url),
            folder / "batchdeck.db",
        )
        self.gateway.start()

    @property
    def boot_id(self) -> str:
        return self.gateway._node.boot_id

    def ask_locally(self, text: str) -> RequestStream:
        """Ask the engine as the screen does, past the broker."""
        messages = (ChatMessage("user", text),)
        return self.engine.submit(Submission(messages=messages, request_id=f"local {text}"))

    def check_idle(self) -> None:
        """Nothing runs or waits, and every block is free or cached."""
        self.until(lambda: not (len(self.gateway._exchanges) or len(self.gateway._delivery)))
        snapshot = self.engine.snapshot()
        assert snapshot is not None
        assert snapshot.num_running == snapshot.num_waiting == snapshot.blocks.used == 0

    def online(self) -> None:
        """Wait until it is connected."""
        self.until(lambda: self.gateway.view().phase is LinkPhase.ONLINE)

    def accepted(self, count: int) -> None:
        """Wait until the engine was asked so many times in all."""
        self.until(lambda: len(self.engine.submissions) >= count)

    def settle(self, received: int) -> None:
        """Wait until so many messages have come, and it has decided about all of them."""
        gateway = self.gateway
        self.until(lambda: gateway.view().received >= received and not gateway._inbox)

    def run(self, condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
        """Step the engine until `condition` holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not in {timeout} s: {self.gateway.view()}"
            if not self.engine.advance():
                time.sleep(0.002)

    def told(self) -> object:
        return self.gateway.view()

    def stop(self, drain_seconds: float | None = None) -> None:
        self.gateway.stop(drain_seconds)


@contextmanager
def serving(port: int, folder: Path, **kwargs: Any) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        # Tests wait for it.
        patch.setattr(gateway, "POLL_SECONDS", 0.05)
        patch.setattr(gateway, "VIEW_SECONDS", 0.02)
        one = Serving(port, folder, **kwargs)
        try:
            one.online()
            yield one
        finally:
            one.stop(0.0)
