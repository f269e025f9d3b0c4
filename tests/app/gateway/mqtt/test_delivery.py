"""Endings on their way: a link that is told what to do, and a store that may fail."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.gateway.mqtt import delivery as module
from app.gateway.mqtt.delivery import Delivery
from app.gateway.mqtt.exchange import ReplyTo
from app.gateway.mqtt.protocol.replies import (
    ErrorReply,
    Final,
    ReplyTimings,
    ReplyUsage,
    parse_reply,
)
from app.gateway.mqtt.transport.link import LinkPhase, Outcome, Outgoing
from app.gateway.sources import MQTT
from app.store.database import StoreError
from app.store.journal import JournalEntry
from app.store.store import Store
from engine.api.lifecycle import FinishReason

ENDING = Outgoing("topic", b"{}")


class Way:
    """A link and a journal."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(phase=LinkPhase.ONLINE)
        self.journal = self
        self.open: list[asyncio.Future[Outcome]] = []
        self.given: list[Outgoing] = []
        self.max_packet = 400
        self.told: list[tuple[str, int]] = []
        self.is_broken = False

    async def deliver(self, message: Outgoing) -> Outcome:
        self.given.append(message)
        self.open.append(asyncio.get_running_loop().create_future())
        return await self.open[-1]

    def mark_delivered(self, attempts: Iterable[tuple[str, int]]) -> None:
        if self.is_broken:
            raise StoreError("no room")
        self.told += attempts

    async def answer(self, outcome: Outcome) -> None:
        for future in self.open:
            future.set_result(outcome)
        self.open.clear()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Way:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "REFUSED_SECONDS", 0.001)
    return Way()


def over(way: Any) -> Delivery:
    return Delivery(way, way)


async def test_what_the_broker_has_is_marked_told(way: Way) -> None:
    delivery = over(way)
    delivery.publish("a", 1, ENDING)
    delivery.publish("a", 2, ENDING)
    await settle()
    assert len(delivery) == 2
    await way.answer(Outcome.ACKNOWLEDGED)
    await asyncio.wait_for(delivery.drained(), 1.0)
    assert len(delivery) == 0
    delivery.close()
    assert way.told == [("a", 1), ("a", 2)]


async def test_offline_it_waits_for_the_link(way: Way) -> None:
    way.state.phase = LinkPhase.OFFLINE
    delivery = over(way)
    delivery.publish("a", 1, ENDING)
    await settle()
    assert not way.open
    way.state.phase = LinkPhase.ONLINE
    delivery.resume()
    delivery.resume()
    await settle()
    assert len(way.open) == 1
    delivery.close()
    await settle()
    assert not way.told


async def again(way: Way) -> None:
    async with asyncio.timeout(1.0):
        while not way.open:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.FULL, Outcome.LOST])
async def test_what_was_not_taken_is_tried_again(way: Way, outcome: Outcome) -> None:
    """A lost message is sent again, though the link may be back before the loss is reported."""
    delivery = over(way)
    delivery.publish("a", 1, ENDING)
    await settle()
    await way.answer(outcome)
    assert len(delivery) == 1
    await again(way)
    await way.answer(Outcome.ACKNOWLEDGED)
    assert len(delivery) == 0


async def test_the_link_is_back_before_a_loss_is_heard_of(way: Way) -> None:
    delivery = over(way)
    delivery.publish("a", 1, ENDING)
    await settle()
    way.open.pop().set_result(Outcome.LOST)
    delivery.resume()
    await again(way)
    await way.answer(Outcome.ACKNOWLEDGED)
    assert len(delivery) == 0


async def test_what_is_refused_for_ever_is_given_up(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = over(way)
    delivery.publish("a", 1, ENDING)
    await settle()
    for tries in range(1, module.MAX_REFUSALS + 1):
        await again(way)
        assert len(delivery) == 1
        if tries == 2:  # the link went and is back: no more tries than without
            await way.answer(Outcome.LOST)
            delivery.resume()
            await again(way)
        await way.answer(Outcome.REFUSED)
    assert len(delivery) == 0
    await delivery.drained()
    delivery.close()
    assert way.told == [("a", 1)]  # nor is it told after a restart
    assert caplog.messages == [
        "the ending of 'a' cannot be delivered: the broker refused it 5 times"
    ]


async def test_what_is_too_large_is_told_to_be(way: Way) -> None:
    final = Final(
        request_id="1",
        attempt=2,
        last_seq=7,
        text="word " * 200,
        finish_reason="length",
        model="m",
        usage=ReplyUsage(prompt_tokens=1, completion_tokens=2, total_tokens=3, cached_tokens=0),
        timings=ReplyTimings(queue_ms=None, ttft_ms=None, tpot_ms=None, e2e_ms=None),
    )
    delivery = over(way)
    delivery.publish("a", 2, Outgoing("topic", final.encode(), correlation=b"c"))
    await settle()
    await way.answer(Outcome.TOO_LARGE)
    told = way.given[-1]
    reply = parse_reply(told.payload)
    assert isinstance(reply, ErrorReply)
    assert told.packet_bytes <= way.max_packet
    assert (told.correlation, reply.attempt, reply.last_seq) == (b"c", 2, 7)
    assert (reply.error.code, reply.error.retryable) == (413, False)
    assert "the broker forwards at most 400" in reply.error.message
    await way.answer(Outcome.ACKNOWLEDGED)
    assert len(delivery) == 0


async def test_a_store_that_fails_has_it_told_again_after_a_restart(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    way.is_broken = True
    delivery = over(way)
    delivery.publish("a", 1, ENDING)
    await settle()
    await way.answer(Outcome.ACKNOWLEDGED)
    delivery.close()
    assert "1 endings will be delivered again after a restart: no room" in caplog.text


async def test_an_ending_that_is_damaged_keeps_no_other_from_being_told(tmp_path: Path) -> None:
    path, topic = tmp_path / "store.db", "llm/v1/pool/rep/alice/c/"
    with closing(Store(path)) as store:
        for name in "123":
            entry = JournalEntry(
                request_id=f"pool/alice/c/{name}",
                source=MQTT,
                reply_to=ReplyTo(topic + name).dump(),
            )
            store.journal.start(entry)
            store.journal.end(entry.request_id, FinishReason.STOP, ending="{}")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE request SET reply_to = '[' WHERE request_id LIKE '%/1'")
        db.execute("UPDATE request SET reply_to = '[\"a\", null]' WHERE request_id LIKE '%/2'")
    way = Way()
    with closing(Store(path)) as store:
        Delivery(store, way).adopt("pool")  # type: ignore[arg-type]
        await settle()
        assert [message.topic for message in way.given] == [f"{topic}3"]
        await way.answer(Outcome.ACKNOWLEDGED)
