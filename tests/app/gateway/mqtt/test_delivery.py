"""Endings on their way: a link that is told what to do, and a store that may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from app.database import StoreError
from app.gateway.mqtt import delivery as module
from app.gateway.mqtt.delivery import Delivery
from app.gateway.mqtt.transport.link import LinkPhase, Outgoing

ENDING = Outgoing("topic", b"{}")


class Way:
    """A link and a journal."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(phase=LinkPhase.ONLINE)
        self.journal = self
        self.open: list[asyncio.Future[bool]] = []
        self.told: list[tuple[str, int]] = []
        self.is_broken = False

    async def deliver(self, _message: Outgoing) -> bool:
        self.open.append(asyncio.get_running_loop().create_future())
        return await self.open[-1]

    def mark_told(self, attempts: Iterable[tuple[str, int]]) -> None:
        if self.is_broken:
            raise StoreError("no room")
        self.told += attempts

    async def answer(self, taken: bool) -> None:
        for future in self.open:
            future.set_result(taken)
        self.open.clear()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Way:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    return Way()


def over(way: Any) -> Delivery:
    return Delivery(way, way)


async def test_what_the_broker_has_is_marked_told(way: Way) -> None:
    delivery = over(way)
    delivery.add("a", 1, ENDING)
    delivery.add("a", 2, ENDING)
    await settle()
    assert len(delivery) == 2
    await way.answer(True)
    await asyncio.wait_for(delivery.drained(), 1.0)
    assert len(delivery) == 0
    delivery.close()
    assert way.told == [("a", 1), ("a", 2)]


async def test_offline_it_waits_for_the_link(way: Way) -> None:
    way.state.phase = LinkPhase.OFFLINE
    delivery = over(way)
    delivery.add("a", 1, ENDING)
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


async def test_what_was_refused_is_tried_again(way: Way) -> None:
    delivery = over(way)
    delivery.add("a", 1, ENDING)
    await settle()
    await way.answer(False)
    assert len(delivery) == 1
    async with asyncio.timeout(1.0):
        while not way.open:
            await asyncio.sleep(0.001)
    await way.answer(True)
    assert len(delivery) == 0


async def test_a_store_that_fails_has_it_told_again_after_a_restart(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    way.is_broken = True
    delivery = over(way)
    delivery.add("a", 1, ENDING)
    await settle()
    await way.answer(True)
    delivery.close()
    assert "1 endings will be told again after a restart: no room" in caplog.text
