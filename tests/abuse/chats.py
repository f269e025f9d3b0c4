"""Chats that ask again and again, over HTTP and MQTT, and how each request ended."""

from __future__ import annotations

import http.client
import json
import math
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.abuse.server import NEIGHBOUR
from tests.support.mqtt_peer import ENDS, Peer, peer

OVER_HTTP, OVER_MQTT = 12, 4
TOKENS = 16
TURNS = 4
PAUSE_SECONDS = (0.2, 1.0)
# A request without an ending by then is lost. A neighbour's takes a second.
LOST_SECONDS = 120.0
_BEAT_SECONDS = 0.1
_STOPPED_SECONDS = 1.0
# After a stop the server may still have to close what was idle too long meanwhile.
_AFTER_SECONDS = 2.0


@dataclass(frozen=True)
class Asked:
    """A request, from `begun` to `ended` in monotonic seconds.

    Attributes:
        over: `HTTP, kept` or `HTTP, new`, by whether the connection is, or `MQTT`.
        ending: `finished`, or the status of a refusal.
        fault: of an answer that is neither; empty if it is one.
        timings: the engine's, in milliseconds, where it states them.
    """

    over: str
    begun: float
    ended: float
    ending: str
    fault: str = ""
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Record:
    """All requests of some chats.

    Attributes:
        since: when what is measured began; latencies are those of requests since then.
        stops: intervals in which this process was stopped, and probably all of the machine.
    """

    asked: list[Asked] = field(default_factory=list)
    since: float = 0.0
    stops: list[tuple[float, float]] = field(default_factory=list)

    @property
    def endings(self) -> Counter[str]:
        return Counter(f"{one.over} {one.ending}" for one in self.asked)

    @property
    def faults(self) -> list[str]:
        wrong = [one for one in self.asked if one.fault and not self._is_stopped(one)]
        return [f"{one.over}: {one.fault}" for one in wrong]

    @property
    def num_stopped(self) -> int:
        """Requests during which something stood still: neither faults nor latencies count them."""
        return sum(map(self._is_stopped, self.asked))

    def latencies_ms(self, over: str = "") -> list[float]:
        """Of those that finished while nothing stood still, in ascending order."""
        return sorted(
            1000 * (one.ended - one.begun)
            for one in self.asked
            if one.ending == "finished" and over in one.over and not self._is_stopped(one)
        )

    def _is_stopped(self, one: Asked) -> bool:
        return any(
            one.begun < end + _AFTER_SECONDS and begin < one.ended for begin, end in self.stops
        )


def percentile(values: Sequence[float], part: float) -> float:
    """Of values in ascending order."""
    return values[min(len(values) - 1, math.ceil(part * len(values)))]


def figures(name: str, record: Record) -> str:
    """Latencies of all requests and of those that came one way, and where the time went."""
    lines = []
    for over in ("", "HTTP, kept", "HTTP, new", "MQTT"):
        found = record.latencies_ms(over)
        median, p99 = statistics.median(found), percentile(found, 0.99)
        begin = f"{name} {over or 'all'}: {len(found)} requests, median {median:.0f} ms"
        lines.append(f"{begin}, p99 {p99:.0f} ms, longest {found[-1]:.0f} ms")
    for timing in ("queue_ms", "ttft_ms", "tpot_ms"):
        parts = sorted(one.timings.get(timing) or 0.0 for one in record.asked if one.timings)
        middle, p99 = statistics.median(parts), percentile(parts, 0.99)
        lines.append(f"{name} MQTT: {timing} has median {middle:.1f}, p99 {p99:.1f}")
    return "\n".join(lines)


@contextmanager
def chatting(port: int, broker_port: int) -> Iterator[Record]:
    """16 chats ask until the context ends, and then each until it has its last ending."""
    record, over = Record(), threading.Event()
    with ExitStack() as stack:
        chats: list[Callable[[int], Asked]] = [
            HttpChat(port, number, is_kept=number % 2 == 0).ask for number in range(OVER_HTTP)
        ]
        chats += [
            MqttChat(
                stack.enter_context(
                    # While all stands still, the broker may give this client up.
                    peer(broker_port, user=NEIGHBOUR, client=f"chat{n}", expiry=3600)
                )
            ).ask
            for n in range(OVER_MQTT)
        ]
        threads = [threading.Thread(target=_go_on, args=(ask, record, over)) for ask in chats]
        threads.append(threading.Thread(target=_note_stops, args=(record, over)))
        for thread in threads:
            thread.start()
        try:
            yield record
        finally:
            over.set()
            for thread in threads:
                thread.join()


def _go_on(ask: Callable[[int], Asked], record: Record, over: threading.Event) -> None:
    number = 0
    while not over.wait(random.uniform(*PAUSE_SECONDS)):
        begun = time.monotonic()
        try:
            asked = ask(number)
        except Exception as error:  # which would end this thread, and nobody would know
            asked = Asked("chat", begun, time.monotonic(), "lost", repr(error))
        record.asked.append(asked)
        number += 1


def _note_stops(record: Record, over: threading.Event) -> None:
    before = time.monotonic()
    while not over.wait(_BEAT_SECONDS):
        now = time.monotonic()
        if now - before > _STOPPED_SECONDS:
            record.stops.append((before, now))
        before = now


class _Turns:
    """Messages of a chat, which begins anew after some turns."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.messages: list[dict[str, str]] = []

    def question(self, number: int) -> list[dict[str, str]]:
        if number % TURNS == 0:
            self.messages.clear()
        said = {"role": "user", "content": f"I am {self._name}. Hello for the {number}th time!"}
        return [*self.messages, said]

    def answered(self, messages: list[dict[str, str]], text: str) -> None:
        self.messages = [*messages, {"role": "assistant", "content": text}]


class HttpChat:
    """
    Args:
        is_kept: whether all requests have one connection; else each has its own.
    """

    def __init__(self, port: int, number: int, *, is_kept: bool) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", port, timeout=LOST_SECONDS)
        self._is_kept = is_kept
        self._turns = _Turns(f"chat {number}")

    def ask(self, number: int) -> Asked:
        messages = self._turns.question(number)
        body = {"messages": messages, "max_tokens": TOKENS, "stream": True}
        head = {"Authorization": f"Bearer {NEIGHBOUR}", "Content-Type": "application/json"}
        begun, ending, fault = time.monotonic(), "lost", ""
        try:
            self._line.request("POST", "/v1/chat/completions", json.dumps(body), head)
            ending, fault, text = _read(self._line.getresponse())
            self._turns.answered(messages, text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            fault = f"request {number} after {time.monotonic() - begun:.1f} s: {error!r}"
            self._line.close()
        if not self._is_kept:
            self._line.close()
        over = "HTTP, kept" if self._is_kept else "HTTP, new"
        return Asked(over, begun, time.monotonic(), ending, fault)


def _read(answer: http.client.HTTPResponse) -> tuple[str, str, str]:
    """The ending, what is wrong with it, and the text."""
    if answer.status != 200:
        said = answer.read().decode(errors="replace")
        return str(answer.status), "" if _is_error(json.loads(said)) else said, ""
    events = [line[6:].strip().decode() for line in answer if line.startswith(b"data: ")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    errors = [chunk for chunk in chunks if "error" in chunk]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    is_whole = events[-1:] == ["[DONE]"] and events.count("[DONE]") == 1
    if not is_whole or len(reasons) + len(errors) != 1:
        return "lost", f"ends with {events[-3:]}, of reasons {reasons}, of errors {errors}", ""
    if errors:
        code = str(errors[0]["error"].get("code"))
        return f"error {code}", "" if _is_error(errors[0]) else f"ends with {errors}", ""
    return "finished", "", "".join(choice["delta"].get("content") or "" for choice in choices)


def _is_error(answer: object) -> bool:
    error = answer.get("error") if isinstance(answer, dict) else None
    return isinstance(error, dict) and bool(error.get("message")) and bool(error.get("type"))


class MqttChat:
    def __init__(self, client: Peer) -> None:
        self._client = client
        self._turns = _Turns(client.client)
        # Known requests are answered as before, a day long.
        self._begun = time.time_ns()

    def ask(self, number: int) -> Asked:
        client, name = self._client, f"{self._begun}-{number}"
        messages = self._turns.question(number)
        begun = time.monotonic()
        body = json.dumps({"messages": messages, "max_tokens": TOKENS})
        client.publish(client.topic("req", name), body, wait=False)
        try:
            client.wait(lambda: client.messages and _ends(client.messages[-1]), LOST_SECONDS)
            ended = time.monotonic()
            client.settle(LOST_SECONDS)
        except AssertionError as error:
            return Asked("MQTT", begun, time.monotonic(), "lost", f"request {number}: {error}")
        # The messages are those since the request before: a second ending of that one is here, too.
        ends = [message[:2] for message in client.messages if _ends(message)]
        client.messages.clear()
        client.properties.clear()
        if [topic for topic, _ in ends] != [client.topic("rep", name)]:
            return Asked("MQTT", begun, ended, "lost", f"request {number} has the endings {ends}")
        end = json.loads(ends[0][1])
        if end["type"] == "error":
            fault = "" if _is_error(end) else f"request {number} ends with {end}"
            return Asked("MQTT", begun, ended, str(end["error"]["code"]), fault)
        self._turns.answered(messages, end["text"])
        return Asked("MQTT", begun, ended, "finished", timings=end["timings"])


def _ends(message: tuple[str, bytes, bool]) -> bool:
    return json.loads(message[1]).get("type") in ENDS
