"""Responder: the server's side of the protocol as a test scripts it, on paho alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

TIMEOUT = 10.0
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "total_tokens": 11,
    "cached_tokens": 4,
    "reasoning_tokens": 0,
}
TIMINGS = {"queue_ms": 1.0, "ttft_ms": 20.0, "tpot_ms": 5.0, "e2e_ms": 25.0, "thinking_ms": None}


class Asked:
    """A request as it came, and the way to answer it."""

    def __init__(self, responder: Responder, topic: str, payload: bytes) -> None:
        self.topic = topic
        self.body = json.loads(payload)
        self.request_id = topic.rpartition("/")[2]
        self._responder = responder

    def accept(self, attempt: int = 1) -> None:
        self.reply("accepted", attempt=attempt, queue_depth=0, priority=0, model="scripted")

    def delta(self, seq: int, text: str, attempt: int = 1) -> None:
        choices = [{"index": 0, "delta": {"content": text}}]
        self.reply("delta", attempt=attempt, seq=seq, choices=choices, qos=0)

    def final(self, text: str, attempt: int = 1, **fields: Any) -> None:
        whole = {"last_seq": -1, "finish_reason": "stop", "model": "scripted", "usage": USAGE}
        self.reply("final", text=text, attempt=attempt, **{**whole, "timings": TIMINGS, **fields})

    def error(self, code: int, message: str, **fields: Any) -> None:
        given = {"attempt": None, "retry_after_ms": None, "queue_depth": None, "last_seq": None}
        retryable = fields.pop("retryable", code in (429, 500, 503))
        error = {"type": "x_error", "code": code, "message": message, "param": None}
        self.reply("error", error={**error, "retryable": retryable}, **{**given, **fields})

    def reply(self, kind: str, *, qos: int = 1, **fields: Any) -> None:
        message = {"v": 1, "type": kind, "request_id": self.request_id, **fields}
        topic = self.topic.replace("/req/", "/rep/", 1)
        self._responder.publish(topic, json.dumps(message).encode(), qos)


def hello(asked: Asked) -> None:
    asked.accept()
    asked.delta(0, "hel")
    asked.delta(1, "lo")
    asked.final("hello")


class Responder:
    """Takes requests and cancels of a pool.

    Attributes:
        requests, cancels: all that came; of the latter the topics.
        answer: gets each request, on paho's thread, in which it must not wait.
    """

    def __init__(
        self,
        port: int,
        answer: Callable[[Asked], None],
        *,
        on_cancel: Callable[[], None] = lambda: None,
        pool: str = "default",
        node: str = "box",
        state: str = "online",
        max_request_bytes: int = 262_144,
    ) -> None:
        self.requests: list[Asked] = []
        self.cancels: list[str] = []
        self.answer = answer
        self._on_cancel = on_cancel
        self._begin = f"llm/v1/{pool}/"
        self._status = f"{self._begin}node/{node}/status"
        self._card = {
            "v": 1,
            "node": node,
            "pool": pool,
            "boot_id": "b1",
            "model": {"name": "scripted", "max_model_len": 9, "dtype": "x", "device": "y"},
            "limits": {
                "max_request_bytes": max_request_bytes,
                "max_requests": 9,
                "user_requests": 9,
                "user_per_minute": 0,
            },
            "version": "0",
            "since": 0.0,
        }
        self._news = threading.Condition()
        self._paho = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._paho.on_message = self._on_message
        connected, subscribed = threading.Event(), threading.Event()
        self._paho.on_connect = lambda *_: connected.set()
        self._paho.on_subscribe = lambda *_: subscribed.set()
        self._paho.connect("127.0.0.1", port)
        self._paho.loop_start()
        assert connected.wait(TIMEOUT)
        self._paho.subscribe([(f"{self._begin}req/#", 1), (f"{self._begin}cancel/#", 1)])
        assert subscribed.wait(TIMEOUT)
        self.tell(state)

    def tell(self, state: str) -> None:
        """Publish the card, or remove it (`removed`), and wait until the broker has that."""
        is_there = state != "removed"
        payload = json.dumps({**self._card, "state": state}).encode() if is_there else b""
        self._paho.publish(self._status, payload, 1, retain=True).wait_for_publish(TIMEOUT)

    def publish(self, topic: str, payload: bytes, qos: int = 1) -> None:
        self._paho.publish(topic, payload, qos)

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        with self._news:
            while not condition():
                assert time.monotonic() < deadline
                self._news.wait(0.05)

    def close(self) -> None:
        self.tell("removed")
        self._paho.disconnect()
        self._paho.loop_stop()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        if message.topic.startswith(f"{self._begin}cancel/"):
            with self._news:
                self.cancels.append(message.topic)
                self._news.notify_all()
            self._on_cancel()
            return
        asked = Asked(self, message.topic, message.payload)
        with self._news:
            self.requests.append(asked)
            self._news.notify_all()
        self.answer(asked)


@contextmanager
def responder(port: int, answer: Callable[[Asked], None], **kwargs: Any) -> Iterator[Responder]:
    one = Responder(port, answer, **kwargs)
    try:
        yield one
    finally:
        one.close()
