"""Brokers, a gateway served on one, and a client.

Mosquitto starts in 6 ms, so that each test has its own, with nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.gateway.mqtt.transport.embedded import EmbeddedBroker
from tests.support.brokers import ExampleMosquitto, Mosquitto
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import Serving, serving


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    """Lets everybody do everything."""
    with Mosquitto() as mosquitto:
        yield mosquitto


@pytest.fixture(scope="session")
def amqtt() -> Iterator[EmbeddedBroker]:
    """Speaks 3.1.1, also by websocket."""
    with EmbeddedBroker(0, websocket_port=0) as embedded:
        yield embedded


@pytest.fixture(scope="session")
def example() -> Iterator[ExampleMosquitto]:
    """The configuration in examples/mosquitto."""
    with ExampleMosquitto() as mosquitto:
        yield mosquitto


@pytest.fixture
def served(broker: Mosquitto, tmp_path: Path) -> Iterator[Serving]:
    with serving(broker.port, tmp_path) as one:
        yield one


@pytest.fixture
def alice(broker: Mosquitto) -> Iterator[Peer]:
    with peer(broker.port) as one:
        yield one
