"""The promises to each owner hold under random loss, repetition and kills."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.gateway.mqtt import gateway as gateway_module
from app.gateway.mqtt.exchanges import RETRY_SECONDS
from app.gateway.mqtt.gateway import ENDING, MqttGateway
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import BrokerAddress
from engine.api.knobs import Knobs
from tests.support.loopback import Broker, LoopbackLink, Published
from tests.support.scripted_engine import ScriptedEngine

NAMES = ("1", "2", "3", "4")
SESSION = ("3", "4")
BRANCH = "alice/phone"


class Promises(RuleBasedStateMachine):
    """A client, a broker and one server after the other, in one thread and in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.broker = Broker()
        # With how much the client had been told by then.
        self.asked: dict[str, list[tuple[Published, int]]] = defaultdict(list)
        self.runs: Counter[str] = Counter()
        self.answers = itertools.count()

    @initialize(congested=st.booleans())
    def begin(self, congested: bool) -> None:
        self.congested = congested
        self.boot()
        self.do(self.link.connect)

    def boot(self) -> None:
        # No two runs say the same: sampling cannot be repeated.
        self.engine = ScriptedEngine(
            lambda _: f"answer {next(self.answers)} of some words", knobs=Knobs(max_num_seqs=2)
        )
        with mock.patch.object(gateway_module, "Link", LoopbackLink):
            self.gateway = MqttGateway(
                self.engine,
                MqttSettings(node="box", delta_ms=0, max_requests=3),
                BrokerAddress.parse("mqtt://loopback"),
                self.folder / "batchdeck.db",
            )
        self.loop = self.gateway._loop
        self.now = 0.0
        self.loop.time = lambda: self.now  # type: ignore[method-assign]
        link: Any = self.gateway._link
        self.link: LoopbackLink = link
        self.link.broker = self.broker
        self.link.is_congested = self.congested
        self.do(self.gateway._delivery.adopt, "default")

    def do(self, call: Callable[..., object], *args: object) -> None:
        """Call something on the gateway's loop, and let that settle."""

        async def settle() -> None:
            call(*args)
            for _ in range(10):
                await asyncio.sleep(0)

        self.loop.run_until_complete(settle())

    def end_process(self) -> None:
        """As SIGKILL does: nothing is written any more, and the lease is free."""
        self.runs.update(s.request_id for s in self.engine.submissions)
        self.gateway._store.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.do(lambda: None)
        self.loop.close()

    @property
    def online(self) -> bool:
        return self.link.state.phase == "online"

    # The client.

    @rule(name=st.sampled_from(NAMES), text=st.sampled_from(("a", "a", "a", "b")))
    def ask(self, name: str, text: str) -> None:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": f"question {text}"}]}
        if name in SESSION:
            body["session_id"] = "s"
        topic = f"llm/v1/default/req/{BRANCH}/{name}"
        published = self.broker.publish(topic, json.dumps(body).encode())
        self.asked[name].append((published, len(self.replies(name))))

    @rule(name=st.sampled_from((*NAMES, "*")))
    def cancel(self, name: str) -> None:
        self.broker.publish(f"llm/v1/default/cancel/{BRANCH}/{name}", b"")

    # The broker and the way there.

    @precondition(lambda self: self.online)
    @rule(most=st.integers(1, 5))
    def receive(self, most: int) -> None:
        self.do(self.link.receive, most)

    @precondition(lambda self: self.online)
    @rule(most=st.integers(1, 10))
    def flush(self, most: int) -> None:
        self.do(self.link.flush, most)

    @precondition(lambda self: self.online)
    @rule(most=st.none() | st.integers(1, 5))
    def confirm(self, most: int | None) -> None:
        """Both in one read, where something new has come as well."""

        def read() -> None:
            self.link.flush()
            self.link.confirm()
            if most is not None:
                self.link.receive(most)

        self.do(read)

    @precondition(lambda self: self.online)
    @rule()
    def lose(self) -> None:
        self.do(self.link.lose)

    @precondition(lambda self: not self.online)
    @rule()
    def connect(self) -> None:
        self.do(self.link.connect)

    # The server.

    @rule(steps=st.integers(1, 8))
    def advance(self, steps: int) -> None:
        self.do(self.engine.advance, steps)

    @rule(failing=st.booleans())
    def disk(self, failing: bool) -> None:
        self.gateway._store._db.read(f"PRAGMA query_only = {int(failing)}")

    @rule()
    def time_passes(self) -> None:
        self.now += RETRY_SECONDS
        self.do(lambda: None)

    @rule()
    def crash(self) -> None:
        self.end_process()
        self.boot()

    @precondition(lambda self: self.online)
    @rule()
    def end(self) -> None:
        """A server that ends tells those that run that it does."""
        exchanges = self.gateway._exchanges
        self.do(exchanges.cancel, exchanges, ENDING)
        self.do(self.link.flush)
        self.end_process()
        self.boot()

    # What holds.

    def replies(self, name: str) -> list[dict[str, Any]]:
        topic = f"llm/v1/default/rep/{BRANCH}/{name}"
        return [json.loads(m.payload) for m in self.broker.told if m.topic == topic]

    @invariant()
    def replies_agree(self) -> None:
        for name in NAMES:
            endings: dict[int, str] = {}
            texts: dict[int, list[tuple[int, str]]] = defaultdict(list)
            for reply in self.replies(name):
                attempt = reply["attempt"]
                if reply["type"] in ("final", "error") and attempt is not None:
                    text = json.dumps(reply)
                    assert endings.setdefault(attempt, text) == text, "an attempt ended twice"
                told = texts[attempt]
                if reply["type"] == "delta":
                    assert attempt not in endings, "a delta after the end"
                    assert not told or reply["seq"] > told[-1][0], "a delta out of order"
                    told.append((reply["seq"], reply["choices"][0]["delta"]["content"]))
                elif reply["type"] == "final" and not self.congested:
                    is_whole = [seq for seq, _ in told] == list(range(reply["last_seq"] + 1))
                    assert not is_whole or "".join(t for _, t in told) == reply["text"]

    def teardown(self) -> None:
        if not hasattr(self, "gateway"):
            return
        try:
            self.settle()
            self.check()
        finally:
            self.end_process()
            shutil.rmtree(self.folder)
        assert max(self.runs.values(), default=1) == 1, "an attempt ran twice"

    def settle(self) -> None:
        """All is well again, for long enough."""
        self.disk(failing=False)
        if not self.online:
            self.do(self.link.connect)
        for _ in range(100):
            self.confirm(100)
            self.do(self.engine.finish_all)
            self.time_passes()
            if self.link.is_quiet and not self.broker.owed:
                break

    def check(self) -> None:
        """Everybody was answered, and nothing is left."""
        for name, published in self.asked.items():
            assert all(message.acknowledged for message, _ in published)
            replies = self.replies(name)
            ends = [(n, r) for n, r in enumerate(replies) if r["type"] in ("final", "error")]
            told = {r["attempt"] for r in replies}
            assert told <= {r["attempt"] for _, r in ends}, f"an attempt of {name} has no ending"
            for _, before in published:
                after = [r for n, r in ends if n >= before]
                assert after, f"who asked {name} was not told how it ended"
                failed = [r["attempt"] for n, r in ends if n < before and may_retry(r)]
                for attempt in failed:
                    assert any(r["attempt"] in (None, *range(attempt + 1, 99)) for r in after)
        assert not len(self.gateway._exchanges)
        assert not len(self.gateway._delivery)
        snapshot = self.engine.snapshot()
        assert snapshot is not None
        assert snapshot.num_running == snapshot.num_waiting == snapshot.blocks.used == 0
        runs = {s.request_id for s in self.engine.submissions}
        for key in runs:
            name, _, attempt = key.rpartition("/")[2].partition("#")
            ends = [r for r in self.replies(name) if r["type"] in ("final", "error")]
            assert any(r["attempt"] == int(attempt or 1) for r in ends), f"{key} has no ending"


def may_retry(reply: dict[str, Any]) -> bool:
    """Whether this attempt may be followed by another."""
    return reply["type"] == "error" and reply["attempt"] and reply["error"]["retryable"]


TestPromises = Promises.TestCase
TestPromises.settings = settings(max_examples=50, stateful_step_count=40)


@pytest.mark.long
class TestManyPromises(Promises.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=3000, stateful_step_count=50)
