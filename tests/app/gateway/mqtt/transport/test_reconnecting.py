"""A connection that broke is made again, and what was not acknowledged comes again."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.gateway.mqtt.transport.link import Inbound, LinkPhase, Outcome, Outgoing
from tests.support.brokers import Mosquitto, free_port
from tests.support.linked import online, party, until
from tests.support.tcp_proxy import Packet, TcpProxy, To

pytestmark = pytest.mark.usefixtures("hurried")


async def test_what_was_not_acknowledged_comes_again(broker: Mosquitto, proxy: TcpProxy) -> None:
    async with online(proxy.url, "again") as one, online(broker.url, "asker") as asker:
        one.acks = False
        assert await asker.link.deliver(Outgoing("again/x", b"hold")) is Outcome.ACKNOWLEDGED
        await until(lambda: b"hold" in one.payloads)
        proxy.reset()
        await until(lambda: one.payloads.count(b"hold") == 2)
        held = [message for message in one.got if message.payload == b"hold"]
        assert [message.duplicate for message in held] == [False, True]
        held[0].ack()  # its connection has gone
        held[1].ack()
        await until(lambda: proxy.passed[To.BROKER, Packet.PUBACK] == 2)
        one.acks = True
        proxy.reset()
        await until(lambda: one.link.reconnects == 2 and b"3" in one.payloads)
        assert one.payloads.count(b"hold") == 2


async def test_what_came_while_we_were_away_is_kept_for_us(
    broker: Mosquitto, proxy: TcpProxy
) -> None:
    async with online(proxy.url, "away") as one, online(broker.url, "asker") as asker:
        proxy.drop(To.BROKER, Packet.CONNECT)
        proxy.reset()
        await one.offline("the connection to the broker broke")
        assert await asker.link.deliver(Outgoing("away/x", b"later")) is Outcome.ACKNOWLEDGED
        proxy.pass_on()
        proxy.reset()
        await until(lambda: b"later" in one.payloads)


async def test_an_owner_that_fails_at_a_message_gets_it_again(
    broker: Mosquitto, proxy: TcpProxy, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def fail_once(message: Inbound) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("full")
        message.ack()

    async with online(proxy.url, "fails", receive=fail_once) as one:
        await until(lambda: calls == 1)
        proxy.reset()
        await until(lambda: calls == 3)  # the first birth again, and the second
        assert one.link.state.phase is LinkPhase.ONLINE
    assert "a message on 'fails/birth' could not be handled" in caplog.text


@pytest.mark.parametrize("way", list(To))
async def test_a_half_closed_connection_is_made_again(
    proxy: TcpProxy, way: To, broker: Mosquitto
) -> None:
    async with online(proxy.url) as one:
        proxy.half_close(way)
        await until(lambda: one.link.reconnects == 1)


async def test_the_will_goes_out_when_we_are_gone_without_a_word(
    broker: Mosquitto, proxy: TcpProxy
) -> None:
    async with online(broker.url, "watch") as watch:
        async with online(proxy.url, will=Outgoing("watch/will", b"gone")) as one:
            proxy.reset()
            await until(lambda: b"gone" in watch.payloads)
            # Who leaves in the midst of connecting again is gone without a word again.
            await until(lambda: one.link.reconnects == 1)
        number = len(watch.got)
        async with online(broker.url, "other", will=Outgoing("watch/will", b"gone")):
            pass
        assert await watch.link.deliver(Outgoing("watch/x", b"after")) is Outcome.ACKNOWLEDGED
        await until(lambda: b"after" in watch.payloads)
        assert len(watch.got) == number + 1


async def test_nothing_is_done_while_there_is_nothing_to_do(broker: Mosquitto) -> None:
    async with online(broker.url, keepalive=60), party(f"mqtt://127.0.0.1:{free_port()}") as gone:
        await until(lambda: len(gone.states) > 5)
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - cpu < 0.2 * (time.monotonic() - began)
