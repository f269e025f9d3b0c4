"""The embedded broker keeps what Mosquitto keeps: sessions, and the quality of messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from app.gateway.mqtt.transport.embedded import EmbeddedBroker
from tests.support.brokers import Mosquitto

PATIENCE = 10.0


class Message(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    is_retained: bool


class Client:
    """A client of MQTT 3.1.1."""

    def __init__(self, port: int, name: str, *, clean: bool) -> None:
        self.got: list[Message] = []
        self.is_known = False
        self._news = threading.Condition()
        self._done: set[int] = set()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, name, clean_session=clean, protocol=paho.MQTTv311
        )
        self._client.on_connect = self._connected
        self._client.on_message = self._came
        self._client.on_subscribe = lambda _c, _u, number, *_: self._note(number)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self.wait(lambda: 0 in self._done)

    def wait(self, is_so: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(is_so, PATIENCE)

    def subscribe(self, topic: str, qos: int) -> None:
        _, number = self._client.subscribe(topic, qos)
        self.wait(lambda: number in self._done)

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        self._client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE)

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(
        self, _client: object, _data: object, flags: paho.ConnectFlags, *_: object
    ) -> None:
        self.is_known = flags.session_present
        self._note(0)

    def _came(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        with self._news:
            self.got.append(
                Message(message.topic, bytes(message.payload), message.qos, message.retain)
            )
            self._news.notify_all()

    def _note(self, number: int) -> None:
        with self._news:
            self._done.add(number)
            self._news.notify_all()


@contextmanager
def client(port: int, name: str, *, clean: bool = True) -> Iterator[Client]:
    one = Client(port, name, clean=clean)
    try:
        yield one
    finally:
        one.leave()


@pytest.fixture(params=["embedded", "mosquitto"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "mosquitto":
        with Mosquitto() as peer:
            yield peer.port
    else:
        with EmbeddedBroker(0) as embedded:
            yield int(embedded.url.rpartition(":")[2])


def test_what_was_published_meanwhile_is_delivered(port: int) -> None:
    """wolfSSL/wolfMQTT#485, fhmq/hmq#170"""
    with client(port, "server") as server:
        with client(port, "ann", clean=False) as ann:
            ann.subscribe("out/#", 1)
            assert not ann.is_known
        for qos in (0, 1):
            server.publish("out/final", b"%d" % qos, qos)
        with client(port, "ann", clean=False) as ann:
            assert ann.is_known
            ann.wait(lambda: len(ann.got) >= 1)
            # The subscription is kept, too. What has quality 0 is not kept for anybody.
            server.publish("out/next", b"2", 1)
            ann.wait(lambda: len(ann.got) >= 2)
            assert ann.got == [
                Message("out/final", b"1", 1, False),
                Message("out/next", b"2", 1, False),
            ]


def test_a_clean_session_forgets(port: int) -> None:
    with client(port, "server") as server:
        with client(port, "ann", clean=False) as ann:
            ann.subscribe("out/#", 1)
        server.publish("out/final", b"1", 1)
        with client(port, "ann") as ann:
            assert not ann.is_known
            ann.subscribe("out/end", 1)
            server.publish("out/final", b"2", 1)
            server.publish("out/end", b"3", 1)
            ann.wait(lambda: bool(ann.got))
            assert [one.payload for one in ann.got] == [b"3"]


@pytest.mark.parametrize("subscribed", [0, 1])
def test_a_message_has_the_lower_quality_of_both(port: int, subscribed: int) -> None:
    with client(port, "server") as server, client(port, "ann") as ann:
        ann.subscribe("out/#", subscribed)
        for qos in (0, 1):
            server.publish("out/delta", b"%d" % qos, qos)
        ann.wait(lambda: len(ann.got) == 2)
        assert sorted(ann.got) == [
            Message("out/delta", b"0", 0, False),
            Message("out/delta", b"1", min(1, subscribed), False),
        ]
