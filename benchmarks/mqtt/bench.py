"""Bench: what all parts measure on: a broker, an engine, clients, and gateways between them."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.gateway.mqtt.gateway import MqttGateway
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import LinkPhase
from benchmarks.mqtt.asking import Ask, Askers
from benchmarks.mqtt.mosquitto import Mosquitto
from benchmarks.paced import wait_for
from engine.serving.host import EngineHost

STEP_SECONDS = 0.025
RATE = 1 / STEP_SECONDS
USERS = tuple(f"user{i}" for i in range(10))
PROMPT = " ".join(f"word{i}" for i in range(64))
MAX_REQUESTS = 100_000
# Until streams that begin together have settled, and from the last look at them to their end.
LEAD_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Bench:
    """The objects that all parts share."""

    broker: Mosquitto
    host: EngineHost
    askers: Askers
    options: argparse.Namespace

    @contextmanager
    def gateway(self, **settings: Any) -> Iterator[MqttGateway]:
        """One with a new store, connected."""
        url = f"mqtt://127.0.0.1:{self.broker.port}"
        with tempfile.TemporaryDirectory() as folder:
            gateway = MqttGateway(
                self.host,
                MqttSettings(url=url, node="bench", max_requests=MAX_REQUESTS, **settings),
                BrokerAddress.parse(url),
                Path(folder, "batchdeck.db"),
            )
            gateway.start()
            try:
                wait_for(lambda: gateway.view().phase is LinkPhase.ONLINE, "the gateway online")
                yield gateway
            finally:
                gateway.stop(0.0)


def request(index: int, name: str, max_tokens: int, at: float = 0.0) -> Ask:
    messages = [{"role": "user", "content": f"{name}{index} {PROMPT}"}]
    body = json.dumps({"messages": messages, "max_tokens": max_tokens}).encode()
    return Ask(USERS[index % len(USERS)], f"{name}{index}", at, body)
