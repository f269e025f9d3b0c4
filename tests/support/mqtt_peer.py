"""Peer: a client of the protocol on paho alone, so that nothing of ours is on both sides."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

TIMEOUT = 10.0
ENDS = ("final", "error")


class Peer:
    """One user's client: asks, cancels, and keeps all that comes.

    Args:
        port: of a broker on the loopback.
        protocol: "5" or "3.1.1".
        will: topic of an empty message, if this client goes without a word.
        expiry: seconds that the broker keeps the session, and what comes for it, after a
            connection is gone; 0 forgets both.

    Attributes:
        messages: (topic, payload, retained) of all that came, in order.
        connections: how often a broker has let this client in.
    """

    def __init__(
        self,
        port: int,
        *,
        user: str = "alice",
        client: str = "phone",
        pool: str = "default",
        protocol: str = "5",
        password: str | None = None,
        will: str | None = None,
        subscribe: bool = True,
        expiry: int = 0,
    ) -> None:
        self.user, self.client, self.pool = user, client, pool
        self.messages: list[tuple[str, bytes, bool]] = []
        self.properties: list[Properties | None] = []
        self.connections = 0
        self._v5 = protocol == "5"
        self._news = threading.Condition()
        self._topics = [f"llm/v1/{pool}/rep/{user}/{client}/#"] if subscribe else []
        self._ungranted: set[int] = set()
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client,
            protocol=paho.MQTTv5 if self._v5 else paho.MQTTv311,
            clean_session=None if self._v5 else expiry == 0,
        )
        self._paho.max_inflight_messages_set(1000)
        self._paho.on_message = self._on_message
        if password is not None:
            self._paho.username_pw_set(user, password)
        if will is not None:
            self._paho.will_set(will, b"", qos=1)
        self._paho.on_socket_open = _without_delay
        self._paho.on_connect = self._on_connect
        self._paho.on_subscribe = self._on_subscribe
        self._paho.reconnect_delay_set(0.1, 0.2)  # type: ignore[arg-type]
        properties = None
        if self._v5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry
        self._paho.connect(
            "127.0.0.1",
            port,
            clean_start=expiry == 0 if self._v5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=properties,
        )
        self._paho.loop_start()
        self.connected(1)

    def topic(self, kind: str, request_id: str) -> str:
        return f"llm/v1/{self.pool}/{kind}/{self.user}/{self.client}/{request_id}"

    def watch(self, topic: str) -> None:
        """Take in what comes on another topic, too."""
        with self._news:
            self._topics.append(topic)
            self._subscribe(topic)
        self.wait(lambda: not self._ungranted)

    def connected(self, times: int) -> None:
        """Wait until a broker has let this client in so often in all, and it is subscribed."""
        self.wait(lambda: self.connections >= times and not self._ungranted)

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        response_topic: str | None = None,
        correlation: bytes | None = None,
        wait: bool = True,
    ) -> None:
        """Publish, and with `wait` and QoS 1 until the broker has it."""
        properties = None
        if self._v5:
            properties = Properties(PacketTypes.PUBLISH)
            if response_topic is not None:
                properties.ResponseTopic = response_topic
            if correlation is not None:
                properties.CorrelationData = correlation
        info = self._paho.publish(topic, payload, qos, retain, properties)
        if wait:
            info.wait_for_publish(TIMEOUT)

    def ask(self, request_id: str, text: str = "hello", **fields: Any) -> None:
        """Publish a request; fields beginning with `mqtt_` are for `publish`."""
        passed = {k.removeprefix("mqtt_"): fields.pop(k) for k in list(fields) if "mqtt_" in k}
        body = {"messages": [{"role": "user", "content": text}], **fields}
        self.publish(self.topic("req", request_id), json.dumps(body), **passed)

    def cancel(self, request_id: str) -> None:
        self.publish(self.topic("cancel", request_id))

    def replies(self, request_id: str) -> list[dict[str, Any]]:
        """The messages on the reply topic of a request so far."""
        topic = self.topic("rep", request_id)
        return [json.loads(payload) for at, payload, _ in tuple(self.messages) if at == topic]

    def ends(self, request_id: str) -> list[dict[str, Any]]:
        """Its endings so far."""
        return [reply for reply in self.replies(request_id) if reply["type"] in ENDS]

    def wait(self, condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
        """Until `condition` holds, looked at when a message comes and now and then."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not condition():
                assert time.monotonic() < deadline, self._late(timeout)
                self._news.wait(0.05)

    def end(self, request_id: str, count: int = 1) -> dict[str, Any]:
        """Its ending number `count`, waited for."""
        self.wait(lambda: len(self.ends(request_id)) >= count)
        return self.ends(request_id)[count - 1]

    def settle(self, timeout: float = TIMEOUT) -> None:
        """Until all that the broker had for this client by now is here."""
        mark = f"llm/v1/{self.pool}/rep/{self.user}/{self.client}/mark-{time.monotonic_ns()}"
        self.publish(mark, b"{}")
        self.wait(lambda: any(at == mark for at, _, _ in tuple(self.messages)), timeout)

    def vanish(self) -> None:
        """Go without a word, so that the will is published."""
        sock = self._paho.socket()
        assert sock is not None
        self._paho.loop_stop()
        sock.close()

    def close(self) -> None:
        self._paho.disconnect()
        self._paho.loop_stop()

    def _late(self, timeout: float) -> str:
        last = [(topic, payload[:300]) for topic, payload, _ in self.messages[-5:]]
        return f"not in {timeout} s; got {len(self.messages)} messages, the last are {last}"

    def _subscribe(self, topic: str) -> None:
        _code, mid = self._paho.subscribe(topic, qos=1)
        if mid is not None:
            self._ungranted.add(mid)

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, code: Any, _properties: Any
    ) -> None:
        if code.is_failure:
            return
        with self._news:
            self.connections += 1
            self._ungranted.clear()
            for topic in self._topics:
                self._subscribe(topic)
            self._news.notify_all()

    def _on_subscribe(self, _client: Any, _data: Any, mid: int, *_: Any) -> None:
        with self._news:
            self._ungranted.discard(mid)
            self._news.notify_all()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self._news:
            self.messages.append((message.topic, message.payload, message.retain))
            self.properties.append(message.properties)
            self._news.notify_all()


def _without_delay(_client: Any, _data: Any, sock: Any) -> None:
    # Else the kernel holds small packets back for 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextmanager
def peer(port: int, **kwargs: Any) -> Iterator[Peer]:
    one = Peer(port, **kwargs)
    try:
        yield one
    finally:
        one.close()
