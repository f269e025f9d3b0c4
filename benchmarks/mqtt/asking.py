"""Asking: MQTT clients in a process of their own, which ask when told and note what comes."""

from __future__ import annotations

import gc
import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

POOL = "default"
CLIENT = "bench"
START_SECONDS = 30.0
CLOSE_SECONDS = 2.0
MARK = "mark"
ENDS = ("final", "error")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be published.

    Attributes:
        at: when to publish it, in monotonic seconds; at once if that has passed.
    """

    user: str
    request_id: str
    at: float
    body: bytes


@dataclass(frozen=True, slots=True)
class Arrival:
    """A reply: when it came in monotonic seconds, its type, and the bytes of its payload."""

    time: float
    type: str
    size: int


@dataclass(slots=True)
class Heard:
    """The messages that the client of one request has received.

    Attributes:
        published: when it was handed to the client's library, in monotonic seconds.
        endings: finals and errors, as they came.
        text: the text of all deltas.
        lost: how many deltas did not come, by their numbers and the final's `last_seq`.
    """

    published: float
    arrivals: list[Arrival] = field(default_factory=list)
    endings: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    lost: int = 0

    def first(self, type_: str) -> float:
        """Seconds from the publish to the first reply of a type.

        Raises:
            LookupError: there was none.
        """
        for arrival in self.arrivals:
            if arrival.type == type_:
                return arrival.time - self.published
        raise LookupError(f"no reply was {type_!r}; the endings are {self.endings}")

    @property
    def is_answered(self) -> bool:
        return [ending["type"] for ending in self.endings] == ["final"]


class Askers:
    """Clients on a process of their own, so that its interpreter is not the server's.

    Each user is one connection, with a thread, MQTT 5 and TCP_NODELAY.
    """

    def __init__(self, port: int, users: Iterable[str]) -> None:
        context = multiprocessing.get_context("spawn")  # the server has threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_ask_as_told, args=(port, tuple(users), theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._receive(START_SECONDS)

    def ask(self, asks: Sequence[Ask], seconds: float) -> None:
        """Publish these, each when its time comes, and wait `seconds` at most for their ends."""
        self._pipe.send((tuple(asks), seconds))

    def heard(self, seconds: float) -> dict[str, Heard]:
        """The replies, by request id, once all requests have ended or their time is over.

        Args:
            seconds: the most to wait for that.

        Raises:
            TimeoutError: the process does not answer.
        """
        heard: dict[str, Heard] = self._receive(seconds)
        return heard

    def close(self) -> None:
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(CLOSE_SECONDS)
        self._process.kill()

    def _receive(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"the clients' process has not answered in {seconds:.0f} s")
        return self._pipe.recv()


class _Client:
    """One user's connection.

    Attributes:
        came: (monotonic seconds, topic, payload) of all messages, in the order in which they came.
    """

    def __init__(self, port: int, user: str, news: threading.Condition) -> None:
        self.came: list[tuple[float, str, bytes]] = []
        self._user = user
        self._news = news
        self._mark = b""
        self._paho = client = paho.Client(
            CallbackAPIVersion.VERSION2, f"{user}-{CLIENT}", protocol=paho.MQTTv5
        )
        client.max_inflight_messages_set(10_000)
        client.on_socket_open = _be_prompt
        client.on_message = self._on_message
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        client.connect("127.0.0.1", port)
        client.loop_start()
        client.subscribe(self.topic("rep", "#"), qos=1)
        if not subscribed.wait(START_SECONDS):
            raise TimeoutError(f"{user} could not subscribe")

    def topic(self, kind: str, request_id: str) -> str:
        return f"llm/v1/{POOL}/{kind}/{self._user}/{CLIENT}/{request_id}"

    def publish(self, topic: str, payload: bytes) -> None:
        self._paho.publish(topic, payload, qos=1)

    def settle(self) -> None:
        """Wait until all that the broker has for this client by now is here."""
        payload = str(time.monotonic_ns()).encode()
        self.publish(self.topic("rep", MARK), payload)
        with self._news:
            self._news.wait_for(lambda: self._mark == payload, START_SECONDS)

    def close(self) -> None:
        self._paho.disconnect()
        self._paho.loop_stop()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        now, payload = time.monotonic(), bytes(message.payload)
        if message.topic.endswith(f"/{MARK}"):
            self._mark = payload
        else:
            # Payloads are parsed when all have ended, so that clients do not delay each other.
            self.came.append((now, message.topic, payload))
            if _type(payload) not in ENDS:
                return
        with self._news:
            self._news.notify()


def _ask_as_told(port: int, users: Sequence[str], pipe: Connection) -> None:
    """The process of the clients."""
    news = threading.Condition()
    clients = {user: _Client(port, user, news) for user in users}
    pipe.send(None)
    while (told := pipe.recv()) is not None:
        asks, seconds = told
        # The time of a garbage collection here would be taken for latency of the server.
        gc.disable()
        published = _publish(clients, asks)
        _await_endings(clients, len(asks), seconds, news)
        gc.enable()
        came = [message for client in clients.values() for message in client.came]
        for client in clients.values():
            client.came.clear()
        pipe.send(digest(came, published))
    for client in clients.values():
        client.close()


def _publish(clients: dict[str, _Client], asks: Sequence[Ask]) -> dict[str, float]:
    """Publish the requests; returns when each was published, by request id."""
    published = {}
    for ask in sorted(asks, key=lambda ask: ask.at):
        time.sleep(max(0.0, ask.at - time.monotonic()))
        client = clients[ask.user]
        topic = client.topic("req", ask.request_id)
        published[ask.request_id] = time.monotonic()
        client.publish(topic, ask.body)
    return published


def _await_endings(
    clients: dict[str, _Client], count: int, seconds: float, news: threading.Condition
) -> None:
    """Wait until so many endings are here, and what the broker has after them."""
    looked = dict.fromkeys(clients, 0)
    ended: set[str] = set()

    def are_all_here() -> bool:
        for user, client in clients.items():
            came = client.came[looked[user] :]
            looked[user] += len(came)
            ended.update(topic for _, topic, payload in came if _type(payload) in ENDS)
        return len(ended) >= count

    with news:
        news.wait_for(are_all_here, seconds)
    for client in clients.values():
        client.settle()


def _be_prompt(_client: Any, _data: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _type(payload: bytes) -> str:
    """The type of a reply, found without parsing all of it."""
    return payload[:60].partition(b'"type":"')[2].partition(b'"')[0].decode()


def digest(
    came: Iterable[tuple[float, str, bytes]], published: Mapping[str, float]
) -> dict[str, Heard]:
    """The replies to each request, by request id.

    Args:
        came: moment, topic and payload of the replies, in the order in which they came.
        published: the moment at which each request was published.
    """
    heard = {request_id: Heard(moment) for request_id, moment in published.items()}
    for moment, topic, payload in came:
        one, reply = heard.get(topic.rpartition("/")[2]), json.loads(payload)
        if one is None:  # a reply to an earlier request, whose time was over
            continue
        one.arrivals.append(Arrival(moment, reply["type"], len(payload)))
        if reply["type"] == "delta":
            one.text += reply["choices"][0]["delta"]["content"]
        elif reply["type"] in ENDS:
            one.endings.append(reply)
    for one in heard.values():
        if one.is_answered:
            deltas = sum(arrival.type == "delta" for arrival in one.arrivals)
            one.lost = one.endings[0]["last_seq"] + 1 - deltas
    return heard
