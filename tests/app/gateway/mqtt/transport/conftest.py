"""A proxy before the broker, and a link in a hurry."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.gateway.mqtt.transport import link as link_module
from app.gateway.mqtt.transport.link import FIRST_PAUSE_SECONDS, GOODBYE_SECONDS
from tests.support.brokers import Mosquitto
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses a fifth of what they are, in the same proportions."""
    monkeypatch.setattr(
        "app.gateway.mqtt.transport.link.FIRST_PAUSE_SECONDS", FIRST_PAUSE_SECONDS / 5
    )
    monkeypatch.setattr(link_module, "GOODBYE_SECONDS", GOODBYE_SECONDS / 5)


@pytest.fixture
async def proxy(broker: Mosquitto) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(broker.port) as between:
        yield between
