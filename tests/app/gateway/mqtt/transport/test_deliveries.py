"""Deliveries on their way when the broker freezes, owes an answer or goes."""

from __future__ import annotations

import asyncio

import pytest

from app.gateway.mqtt.transport.link import (
    CONGESTED_MESSAGES,
    Outcome,
    Outgoing,
)
from tests.support.brokers import Mosquitto
from tests.support.linked import online, until
from tests.support.tcp_proxy import Packet, TcpProxy, To

pytestmark = pytest.mark.usefixtures("hurried")


async def test_a_cancelled_delivery_harms_nothing(broker: Mosquitto, proxy: TcpProxy) -> None:
    async with online(proxy.url) as one:
        proxy.stall()
        waiting = asyncio.ensure_future(one.link.deliver(Outgoing("me/x", b"1")))
        await asyncio.sleep(0)
        waiting.cancel()
        proxy.resume()
        assert await one.link.deliver(Outgoing("me/x", b"2")) is Outcome.ACKNOWLEDGED


async def test_deliveries_end_with_the_connection(broker: Mosquitto, proxy: TcpProxy) -> None:
    async with online(proxy.url) as one:
        proxy.stall()
        waiting = [
            asyncio.ensure_future(one.link.deliver(Outgoing("me/x", bytes(10))))
            for _ in range(CONGESTED_MESSAGES)
        ]
        await until(lambda: one.link.congested(1))
        proxy.reset()
        assert await asyncio.gather(*waiting) == [Outcome.LOST] * CONGESTED_MESSAGES
        assert not one.link.congested(1)
        proxy.resume()
        await one.online()
        # Nothing of the dead connection is sent on the new one.
        before = proxy.passed[To.BROKER, Packet.PUBLISH]
        assert await one.link.deliver(Outgoing("me/x", b"last")) is Outcome.ACKNOWLEDGED
        assert proxy.passed[To.BROKER, Packet.PUBLISH] - before <= 2


async def test_a_broker_that_owes_a_confirmation_is_left(
    broker: Mosquitto, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.gateway.mqtt.transport.outbox.CONFIRM_SECONDS", 0.2)
    async with online(proxy.url) as one:
        await until(lambda: one.payloads == [b"1"])
        assert await one.link.deliver(Outgoing("me/x", b"confirmed")) is Outcome.ACKNOWLEDGED
        proxy.drop(To.CLIENT, Packet.PUBACK, times=1)
        lost = asyncio.ensure_future(one.link.deliver(Outgoing("me/x", b"lost")))
        await until(lambda: proxy.dropped[To.CLIENT, Packet.PUBACK] == 1)
        assert await one.link.deliver(Outgoing("me/x", b"next")) is Outcome.ACKNOWLEDGED
        assert await lost is Outcome.LOST
        await one.offline("the broker does not confirm what it gets")
        await one.online()


async def test_a_burst_of_deliveries_is_confirmed_whole(broker: Mosquitto) -> None:
    async with online(broker.url, "burst") as one:
        sent = [one.link.deliver(Outgoing("burst/x", b"%d" % n)) for n in range(1000)]
        assert set(await asyncio.gather(*sent)) == {Outcome.ACKNOWLEDGED}
        await until(lambda: len(one.got) == 1001)
        assert one.payloads[1:] == [b"%d" % n for n in range(1000)]
        assert not one.link.congested(1)
