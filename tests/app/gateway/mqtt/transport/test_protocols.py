"""Links over MQTT 5 and 3.1.1, by TCP and by websocket."""

from __future__ import annotations

import asyncio

import pytest

from app.gateway.mqtt.transport.embedded import EmbeddedBroker
from app.gateway.mqtt.transport.link import LinkPhase, LinkState, Outcome, Outgoing
from tests.support.brokers import Mosquitto, free_port
from tests.support.linked import online, until
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_what_is_delivered_comes(broker: Mosquitto, protocol: str) -> None:
    async with online(broker.url, f"there-{protocol}", protocol=protocol) as one:
        topic = f"there-{protocol}/x"
        assert (
            await one.link.deliver(Outgoing(topic, b"1", correlation=b"\x00c"))
            is Outcome.ACKNOWLEDGED
        )
        assert one.link.send(Outgoing(topic, b"0", qos=0))
        await until(lambda: len(one.got) == 3)
        birth, first, second = one.got
        assert birth.payload == b"1"
        assert (first.payload, second.payload) == (b"1", b"0")
        assert first.correlation == (b"\x00c" if protocol == "5" else None)
        assert second.acknowledge is None
        assert (one.link.received, one.link.published) == (3, 3)
        assert one.link.state == LinkState(
            LinkPhase.ONLINE, "", one.link.state.since, protocol=protocol
        )
    assert [state.phase for state in one.states] == ["connecting", "online", "stopped"]
    assert not one.link.send(Outgoing(topic, b""))
    assert await one.link.deliver(Outgoing(topic, b"")) is Outcome.LOST


async def test_deliver_is_for_what_is_acknowledged(broker: Mosquitto) -> None:
    async with online(broker.url) as one:
        with pytest.raises(ValueError, match="QoS 1"):
            await one.link.deliver(Outgoing("me/x", b"", qos=0))


async def test_auto_speaks_5_with_mosquitto_and_3_1_1_with_amqtt(
    broker: Mosquitto, amqtt: EmbeddedBroker
) -> None:
    will = Outgoing("auto/will", b"gone", retain=True)
    for url, protocol in ((broker.url, "5"), (amqtt.url, "3.1.1"), (amqtt.websocket_url, "3.1.1")):
        async with online(url, "auto", will=will) as one:
            assert one.link.state.protocol == protocol
            assert await one.link.deliver(Outgoing("auto/x", b"hello")) is Outcome.ACKNOWLEDGED
            await until(lambda: b"hello" in one.payloads)
        assert LinkPhase.OFFLINE not in [state.phase for state in one.states]


async def test_a_broker_that_is_slow_to_answer_still_gets_5(
    broker: Mosquitto, proxy: TcpProxy
) -> None:
    proxy.delay = 0.4  # of each packet: CONNACK comes after the 0.5 s in which amqtt says nothing
    async with online(proxy.url) as one:
        assert one.link.state.protocol == "5"
        assert proxy.connections == 2


async def test_a_websocket_takes_more_than_its_socket_does_at_once() -> None:
    port = free_port()
    options = ("allow_anonymous true", f"listener {port} 127.0.0.1", "protocol websockets")
    with Mosquitto(options) as broker:
        async with online(f"ws://127.0.0.1:{port}", "ws") as one, online(broker.url) as other:
            payloads = [bytes([n]) * 300_000 for n in range(20)]
            sent = [one.link.deliver(Outgoing("me/x", payload)) for payload in payloads]
            assert set(await asyncio.gather(*sent)) == {Outcome.ACKNOWLEDGED}
            await until(lambda: len(other.got) == 21)
            assert other.payloads[1:] == payloads


async def test_retained_and_response_topic_are_told(broker: Mosquitto) -> None:
    async with online(broker.url, "kept") as one:
        publish = ["mosquitto_pub", "-V", "5", "-p", str(broker.port), "-q", "1", "-r"]
        publish += ["-D", "publish", "response-topic", "back/here"]
        publish += ["-D", "publish", "correlation-data", "7", "-t", "kept/x", "-m", "keep"]
        sent = await asyncio.create_subprocess_exec(*publish)
        assert await sent.wait() == 0
        await until(lambda: b"keep" in one.payloads)
        # To a subscriber of 3.1.1 a message that is to be kept looks like any other when it comes.
        assert one.got[-1].retained
        assert (one.got[-1].response_topic, one.got[-1].correlation) == ("back/here", b"7")
    async with online(broker.url, "kept", protocol="3.1.1") as one:
        await until(lambda: b"keep" in one.payloads)
        assert next(m for m in one.got if m.payload == b"keep").retained
        assert await one.link.deliver(Outgoing("kept/x", b"", retain=True)) is Outcome.ACKNOWLEDGED
