"""Everything at once, for a minute: random clients, and all that may fail does."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_server import Server
from tests.support.proxied import Proxied, proxied
from tests.support.tcp_proxy import Packet, To

METRICS = "llm/v1/default/node/box/metrics"
SECONDS = 60.0
CALM_SECONDS = 60.0


class Soak:
    """Clients, a broker, a proxy between it and the server, and the server, a process."""

    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        options = ["allow_anonymous true", "max_queued_messages 0", "persistence true"]
        options += [f"persistence_location {folder}/", "autosave_interval 1"]
        self.broker = stack.enter_context(Mosquitto(options))
        self.way: Proxied = stack.enter_context(proxied(self.broker.port))
        self.clients: list[Peer] = [
            stack.enter_context(
                peer(
                    self.broker.port,
                    user=f"user{n % 2}",
                    client=f"client{n}",
                    expiry=300,
                    protocol=p,
                )
            )
            for n, p in enumerate(("5", "5", "3.1.1", "5"))
        ]
        self.asked: dict[tuple[Peer, str], dict[str, Any]] = {}
        self.server = Server(self.way.port, folder, step_seconds=0.001)
        stack.callback(lambda: self.server.kill())
        self.done: dict[str, int] = defaultdict(int)

    def act(self) -> None:
        actions: dict[Callable[[], None], float] = {
            self.ask: 60,
            self.ask_again: 20,
            self.cancel: 20,
            self.pause: 100,
            self.reset: 4,
            self.lose_packets: 4,
            self.stall: 4,
            self.freeze_broker: 1,
            self.restart_broker: 1,
            self.restart_server: 1,
        }
        action = self.random.choices(list(actions), list(actions.values()))[0]
        self.done[action.__name__] += 1
        action()

    def ask(self) -> None:
        client = self.random.choice(self.clients)
        name = str(len(self.asked))
        body = {"text": "word " * self.random.randint(1, 40)}
        if self.random.random() < 0.3:
            body["session_id"] = f"s{self.random.randint(0, 3)}"
        if self.random.random() < 0.2:
            body["delta_qos"] = 1  # type: ignore[assignment]
        self.asked[client, name] = body
        client.ask(name, **body, mqtt_wait=False)

    def ask_again(self) -> None:
        if self.asked:
            client, name = self.random.choice(list(self.asked))
            client.ask(name, **self.asked[client, name], mqtt_wait=False)

    def cancel(self) -> None:
        if self.asked:
            client, name = self.random.choice(list(self.asked))
            name = "*" if self.random.random() < 0.2 else name
            client.publish(client.topic("cancel", name), wait=False)

    def pause(self) -> None:
        time.sleep(self.random.uniform(0.0, 0.02))

    def reset(self) -> None:
        self.way.do(self.way.proxy.reset)

    def lose_packets(self) -> None:
        way = self.random.choice(list(To))
        self.way.do(self.way.proxy.drop, way, Packet.PUBACK, self.random.randint(1, 20))

    def stall(self) -> None:
        self.way.do(self.way.proxy.stall)
        time.sleep(self.random.uniform(0.0, 0.3))
        self.way.do(self.way.proxy.resume)

    def freeze_broker(self) -> None:
        self.broker.freeze()
        time.sleep(self.random.uniform(0.0, 1.0))
        self.broker.thaw()

    def restart_broker(self) -> None:
        if self.random.random() < 0.5:
            self.broker.stop()
        else:
            self.broker.kill()
        self.broker.start()

    def restart_server(self) -> None:
        self.server.kill()
        self.server = Server(self.way.port, self.folder, step_seconds=0.001)

    def calm(self) -> None:
        """No more faults: whoever has no ending yet asks until there is one."""
        self.way.do(self.way.proxy.pass_on)
        self.way.do(self.way.proxy.reset)  # what was dropped comes again
        deadline = time.monotonic() + CALM_SECONDS
        while missing := [key for key in self.asked if not has_ended(*key)]:
            told = [client.replies(name)[-3:] for client, name in missing[:3]]
            assert time.monotonic() < deadline, f"{len(missing)} have no end, such as {told}"
            for client, name in missing[:16]:
                client.ask(name, **self.asked[client, name], mqtt_wait=False)
            time.sleep(0.5)

    def check(self) -> None:
        for client, name in self.asked:
            ends: dict[int, dict[str, Any]] = {}
            attempts = set()
            for reply in client.replies(name):
                attempt = reply["attempt"]
                if attempt is None:
                    continue
                attempts.add(attempt)
                if reply["type"] in ("final", "error"):
                    assert ends.setdefault(attempt, reply) == reply, "an attempt ended twice"
            assert attempts <= set(ends), f"an attempt of {name} has no ending"
            assert sum(end["type"] == "final" for end in ends.values()) <= 1
        watcher = self.clients[0]
        watcher.watch(METRICS)

        def is_idle() -> bool:
            found = [p for topic, p, _ in watcher.messages if topic == METRICS]
            if not found:
                return False
            newest = json.loads(found[-1])
            return not (newest["kv_used"] or newest["running"] or newest["mqtt"]["running"])

        watcher.wait(is_idle, 30.0)


def has_ended(client: Peer, name: str) -> bool:
    """Whether there is an ending that asking again would not change."""
    return any(
        end["attempt"] is not None and not (end["type"] == "error" and end["error"]["retryable"])
        for end in client.ends(name)
    )


@pytest.mark.long
def test_no_ending_is_lost_or_doubled_whatever_fails(tmp_path: Path) -> None:
    with ExitStack() as stack:
        soak = Soak(stack, tmp_path, seed=2)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            soak.act()
        soak.calm()
        soak.check()
