from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from app.gateway.mqtt.transport import link as link_module
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.connection import Connection
from app.gateway.mqtt.transport.embedded import EmbeddedBroker
from app.gateway.mqtt.transport.link import (
    CONGESTED_MESSAGES,
    FIRST_PAUSE_SECONDS,
    GOODBYE_SECONDS,
    MAX_MESSAGES,
    Inbound,
    Link,
    LinkPhase,
    LinkState,
    Outgoing,
)
from tests.support.brokers import ExampleMosquitto, Mosquitto, free_port
from tests.support.tcp_proxy import Packet, TcpProxy, To, read_packet

TIMEOUT = 10.0


async def until(condition: Callable[[], object], seconds: float = TIMEOUT) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


class Party:
    """A link and what came of it.

    Attributes:
        acks: whether it acknowledges what it gets.
    """

    def __init__(self, address: str | BrokerAddress, name: str, **options: Any) -> None:
        self.got: list[Inbound] = []
        self.states: list[LinkState] = []
        self.acks = True
        self.births = 0
        values: dict[str, Any] = {
            "client_id": name,
            "subscriptions": ((f"{name}/+", 1),),
            "will": None,
            "birth": self._birth,
            "receive": self._receive,
            "changed": self.states.append,
        }
        if isinstance(address, str):
            address = BrokerAddress.parse(address)
        self.name = name
        self.link = Link(address, **{**values, **options})

    def _birth(self) -> tuple[Outgoing, ...]:
        self.births += 1
        return (Outgoing(f"{self.name}/birth", b"%d" % self.births),)

    def _receive(self, message: Inbound) -> None:
        self.got.append(message)
        if self.acks:
            message.ack()

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.got]

    async def online(self) -> None:
        await until(lambda: self.link.state.phase is LinkPhase.ONLINE)

    async def offline(self, words: str, seconds: float = TIMEOUT) -> None:
        """Wait until it is offline for a reason."""
        await until(
            lambda: any(s.phase is LinkPhase.OFFLINE and words in s.detail for s in self.states),
            seconds,
        )


@asynccontextmanager
async def party(
    address: str | BrokerAddress, name: str = "me", **options: Any
) -> AsyncIterator[Party]:
    one = Party(address, name, **options)
    running = asyncio.create_task(one.link.run())
    try:
        yield one
    finally:
        await one.link.close()
        await running


@asynccontextmanager
async def online(
    address: str | BrokerAddress, name: str = "me", **options: Any
) -> AsyncIterator[Party]:
    async with party(address, name, **options) as one:
        await one.online()
        yield one


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses a fifth of what they are, in the same proportions."""
    monkeypatch.setattr(
        "app.gateway.mqtt.transport.link.FIRST_PAUSE_SECONDS", FIRST_PAUSE_SECONDS / 5
    )
    monkeypatch.setattr(link_module, "GOODBYE_SECONDS", GOODBYE_SECONDS / 5)


@pytest.fixture
async def proxy(broker: Mosquitto) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(broker.port) as between:
        yield between


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_what_is_delivered_comes(broker: Mosquitto, protocol: str) -> None:
    async with online(broker.url, f"there-{protocol}", protocol=protocol) as one:
        topic = f"there-{protocol}/x"
        assert await one.link.deliver(Outgoing(topic, b"1", correlation=b"\x00c"))
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
    assert not await one.link.deliver(Outgoing(topic, b""))


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
            assert await one.link.deliver(Outgoing("auto/x", b"hello"))
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
            assert all(await asyncio.gather(*sent))
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
        assert await one.link.deliver(Outgoing("kept/x", b"", retain=True))


async def test_a_broker_killed_and_restarted_is_found_again() -> None:
    will = Outgoing("watch/will", b"gone")
    with Mosquitto() as broker:
        async with online(broker.url, will=will) as one:
            await until(lambda: one.payloads == [b"1"])
            broker.kill()
            await one.offline("the connection to the broker broke")
            assert not one.link.send(Outgoing("me/x", b""))
            await one.offline("no broker listens there")
            broker.start()
            await one.online()
            # The broker forgot our subscriptions: they were made anew, and the birth after them.
            await until(lambda: one.payloads == [b"1", b"2"])
            assert one.link.reconnects == 1


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Where it is served, as HOST:PORT."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def ending_with(packet: bytes) -> AsyncIterator[str]:
    """A broker of MQTT 5 whose last packet this is, once it was subscribed to. Gives its URL."""
    connections = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)  # open until the link closes it
        while (await read_packet(reader))[0] >> 4 != Packet.SUBSCRIBE:
            writer.write(b"\x20\x03\x00\x00\x00")
        writer.write(b"\x90\x04\x00\x01\x00\x01" + packet)

    async with serving(serve) as place:
        yield f"mqtt://{place}"
        for writer in connections:
            writer.close()


def dismissing(code: int) -> AbstractAsyncContextManager[str]:
    """Mosquitto 2.0.11 ends connections without a reason code."""
    return ending_with(bytes([0xE0, 1, code]))


async def test_a_broker_that_says_goodbye_is_quoted() -> None:
    async with dismissing(0x8B) as url, party(url) as one:
        await one.offline("the broker ended the connection: server shutting down")
        await until(lambda: one.link.reconnects == 1)


async def test_a_broker_that_says_that_we_were_taken_over_is_believed() -> None:
    async with dismissing(0x8E) as url:
        one = Party(url, "me")
        await asyncio.wait_for(one.link.run(), TIMEOUT)
        assert one.link.state.phase is LinkPhase.TAKEN_OVER
        assert "under the same client identifier" in one.link.state.detail


@pytest.mark.parametrize(
    "packet",
    [b"\x30\x02\x00\x09", b"\x30\x06\x00\x01a\x02\x7f\x00", b"\x90\x04\x00\x02\x00\x55"],
    ids=["a topic that is cut off", "an unknown property", "an unknown reason code"],
)
async def test_what_is_not_mqtt_ends_the_connection_at_once(packet: bytes) -> None:
    async with ending_with(packet) as url, party(url) as one:
        await one.offline("the broker sent something that is not MQTT")
        await until(lambda: one.link.reconnects == 1)


@pytest.mark.parametrize("header", [b"Sec-WebSocket-Accept:x", b"Sec-WebSocket-Accept: \xff"])
async def test_a_strange_answer_of_a_web_server_is_told_in_words(header: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\n" + header + b"\r\n\r\n")

    async with serving(serve) as place, party(f"ws://{place}") as one:
        await one.offline("does not speak MQTT over websockets")


@pytest.mark.parametrize("turns", range(4))
async def test_closing_at_any_moment_leaves_nothing_in_the_loop(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Also in the turn of the loop in which the socket was handed over."""
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: troubles.append(what))
    greeting = asyncio.Event()
    greet = Connection.greet

    async def told(connection: Connection) -> None:
        greeting.set()
        await greet(connection)

    monkeypatch.setattr(Connection, "greet", told)
    one = Party(broker.url, "brief")
    running = asyncio.create_task(one.link.run())
    await greeting.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    await one.link.close()
    await running
    assert troubles == []


async def test_what_was_not_acknowledged_comes_again(broker: Mosquitto, proxy: TcpProxy) -> None:
    async with online(proxy.url, "again") as one, online(broker.url, "asker") as asker:
        one.acks = False
        assert await asker.link.deliver(Outgoing("again/x", b"hold"))
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
        assert await asker.link.deliver(Outgoing("away/x", b"later"))
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
        async with online(proxy.url, will=Outgoing("watch/will", b"gone")):
            proxy.reset()
            await until(lambda: b"gone" in watch.payloads)
        number = len(watch.got)
        async with online(broker.url, "other", will=Outgoing("watch/will", b"gone")):
            pass
        assert await watch.link.deliver(Outgoing("watch/x", b"after"))
        await until(lambda: b"after" in watch.payloads)
        assert len(watch.got) == number + 1


def _server(name: str, boot: str) -> dict[str, Any]:
    """Will and birth of a server: kept at one topic, and of this process."""
    topic = f"{name}/status"
    return {
        "will": Outgoing(topic, f"{boot} offline".encode(), retain=True),
        "birth": lambda: (Outgoing(topic, f"{boot} online".encode(), retain=True),),
    }


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_of_two_under_one_identifier_the_older_yields(
    broker: Mosquitto, protocol: str
) -> None:
    name = f"twin-{protocol}"
    async with (
        online(broker.url, name, protocol=protocol, **_server(name, "A")) as one,
        online(broker.url, name, protocol=protocol, **_server(name, "B")) as two,
    ):
        await until(lambda: one.link.state.phase is LinkPhase.TAKEN_OVER)
        assert "under the same client identifier" in one.link.state.detail
        assert one.link.reconnects == 2
        await until(lambda: two.link.reconnects == 2)
        await two.online()
        assert await two.link.deliver(Outgoing(f"{name}/x", b"mine"))
        async with online(broker.url, "look", subscriptions=((f"{name}/status", 1),)) as look:
            await until(lambda: look.payloads[-1:] == [b"B online"])
        # It comes back only when told to.
        running = asyncio.create_task(one.link.run())
        await until(lambda: two.link.state.phase is not LinkPhase.ONLINE)
        await one.link.close()
        await running


async def test_a_server_killed_and_started_again_is_not_its_own_twin(broker: Mosquitto) -> None:
    """Also where the broker has not noticed yet, and where it goes away in between."""
    async with (
        TcpProxy(broker.port) as first,
        TcpProxy(broker.port) as second,
        online(first.url, "kin", **_server("kin", "A")) as killed,
    ):
        first.stall()
        async with online(second.url, "kin", **_server("kin", "B")) as one:
            for number in range(1, 4):
                second.reset()
                await until(lambda n=number: one.link.reconnects == n)  # type: ignore[misc]
                await one.online()
            assert LinkPhase.TAKEN_OVER not in [state.phase for state in one.states]
        await killed.link.close()


async def test_twins_without_a_will_get_slower_and_are_told_what_it_may_be(
    broker: Mosquitto,
) -> None:
    async with (
        party(broker.url, "mute", protocol="3.1.1") as one,
        party(broker.url, "mute", protocol="3.1.1") as two,
    ):
        words = "maybe another program uses the client identifier 'mute'"
        await until(lambda: any(words in state.detail for state in one.states + two.states))
        # Each pause is twice the one before.
        assert one.link.reconnects + two.link.reconnects < 20


async def test_a_denied_publish_is_not_delivered_and_told_once(
    example: ExampleMosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    async with online(_example(example, "alice"), "phone", subscriptions=(), birth=tuple) as alice:
        assert await alice.link.deliver(Outgoing("llm/v1/default/req/alice/phone/1", b"mine"))
        for number in range(3):
            topic = f"llm/v1/default/req/bob/phone/{number}"
            assert not await alice.link.deliver(Outgoing(topic, b"not mine"))
        assert alice.link.denied == 3
        assert alice.link.state.phase is LinkPhase.ONLINE
    assert caplog.text.count("refuses what we publish below 'llm/v1/default/req/bob/phone'") == 1
    assert "not authorized" in caplog.text


async def test_a_packet_larger_than_the_broker_takes_is_not_sent(
    example: ExampleMosquitto,
) -> None:
    async with online(_example(example, "alice"), "phone", subscriptions=(), birth=tuple) as alice:
        topic = "llm/v1/default/req/alice/phone/1"
        assert not await alice.link.deliver(Outgoing(topic, bytes(1 << 20)))
        assert await alice.link.deliver(Outgoing(topic, bytes((1 << 20) - 100)))
        assert alice.link.reconnects == 0


@pytest.mark.parametrize("protocol", ["auto", "3.1.1"])
async def test_a_wrong_password_is_told_in_words_and_tried_again(
    example: ExampleMosquitto, protocol: str
) -> None:
    address = _example(example, "alice", password="s3cr3t")
    async with party(address, "phone", protocol=protocol) as one:
        await one.offline("the user or the password is wrong")
        await until(lambda: len(one.states) >= 4)
        phases = ["connecting", "offline", "connecting", "offline"]
        assert [state.phase for state in one.states[:4]] == phases
        assert "s3cr3t" not in repr(one.states)


async def test_a_client_certificate_names_the_user(example: ExampleMosquitto) -> None:
    files = {
        "ca_file": example.certificates / "ca.crt",
        "cert_file": example.certificates / "alice.crt",
        "key_file": example.certificates / "alice.key",
    }
    url = f"mqtts://localhost:{example.certificate_port}"
    async with online(
        BrokerAddress.parse(url, **files), "phone", subscriptions=(), birth=tuple
    ) as alice:
        assert alice.link.state.protocol == "5"
        assert await alice.link.deliver(Outgoing("llm/v1/default/req/alice/phone/1", b""))
        assert not await alice.link.deliver(Outgoing("llm/v1/default/req/bob/phone/1", b""))
    plain = BrokerAddress.parse(url, ca_file=files["ca_file"])
    async with party(plain, "phone") as nobody:
        await nobody.offline("for a client certificate")


async def test_a_broker_with_an_unknown_or_anothers_certificate_is_not_talked_to(
    example: ExampleMosquitto,
) -> None:
    unknown = BrokerAddress.parse(f"mqtts://localhost:{example.port}")
    async with party(unknown) as one:
        await one.offline("the broker's certificate is signed by nobody we know; set ca_file")
    another = BrokerAddress.parse(
        f"mqtts://127.0.0.1:{example.port}", ca_file=example.certificates / "ca.crt"
    )
    async with party(another) as one:
        await one.offline("the broker's certificate is for another host than the address has")


async def test_what_is_not_there_is_told_in_words(
    broker: Mosquitto, example: ExampleMosquitto, tmp_path: Any
) -> None:
    addresses = {
        "no broker listens there": BrokerAddress.parse(f"mqtt://127.0.0.1:{free_port()}"),
        "the host is not known": BrokerAddress.parse("mqtt://no-such-host.invalid"),
        "broke off the connection": BrokerAddress.parse(f"mqtts://127.0.0.1:{broker.port}"),
        "does not speak MQTT over websockets": BrokerAddress.parse(f"ws://127.0.0.1:{broker.port}"),
        "closed the connection without a word": BrokerAddress.parse(
            f"mqtt://127.0.0.1:{example.port}"
        ),
        "ca_file is": BrokerAddress.parse("mqtts://127.0.0.1", ca_file=tmp_path / "none"),
    }
    for words, address in addresses.items():
        async with party(address) as one:
            await one.offline(words)


async def test_a_frozen_broker_is_noticed_while_we_publish_and_costs_no_memory() -> None:
    with Mosquitto() as broker:
        async with online(broker.url, keepalive=2) as one:
            link = one.link
            broker.freeze()
            began = time.monotonic()
            waiting = asyncio.ensure_future(link.deliver(Outgoing("me/x", b"")))
            taken = 0
            congested_at = None
            while link.state.phase is LinkPhase.ONLINE:
                taken += sum(link.send(Outgoing("me/x", bytes(1000), qos=0)) for _ in range(500))
                if link.congested and congested_at is None:
                    congested_at = taken
                await asyncio.sleep(0.01)
            # The bounds: a message in the socket's buffers more or less.
            assert time.monotonic() - began < 2 * 2 + 0.5
            assert "the broker has fallen silent" in link.state.detail
            assert await waiting is False
            assert congested_at is not None
            assert taken <= MAX_MESSAGES + 10_000
            assert not link.congested
            broker.thaw()
            await one.online()


async def test_close_does_not_wait_for_a_frozen_broker() -> None:
    with Mosquitto() as broker:
        one = Party(broker.url, "me")
        running = asyncio.create_task(one.link.run())
        await one.online()
        broker.freeze()
        # More than the socket's buffers hold, so that DISCONNECT cannot be written.
        while not one.link.congested:
            for _ in range(100):
                one.link.send(Outgoing("me/x", bytes(10_000), qos=0))
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(one.link.deliver(Outgoing("me/x", b"")))
        await asyncio.sleep(0)
        began = time.monotonic()
        await one.link.close()
        assert time.monotonic() - began < GOODBYE_SECONDS / 5 + 0.5
        assert await waiting is False
        assert running.done()
        broker.thaw()


async def test_close_does_not_wait_for_a_host_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        url = f"mqtt://127.0.0.1:{silent.getsockname()[1]}"
        async with party(url) as one:
            await asyncio.to_thread(silent.accept)
            began = time.monotonic()
        assert time.monotonic() - began < 0.5
        assert one.link.state.phase is LinkPhase.STOPPED


async def test_a_cancelled_link_leaves_no_connection(broker: Mosquitto) -> None:
    async with online(broker.url, "watch") as watch:
        one = Party(broker.url, "cancelled", will=Outgoing("watch/will", b"gone"))
        running = asyncio.create_task(one.link.run())
        await one.online()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert one.link.state.phase is LinkPhase.STOPPED
        await until(lambda: b"gone" in watch.payloads)


async def test_a_cancelled_delivery_harms_nothing(broker: Mosquitto, proxy: TcpProxy) -> None:
    async with online(proxy.url) as one:
        proxy.stall()
        waiting = asyncio.ensure_future(one.link.deliver(Outgoing("me/x", b"1")))
        await asyncio.sleep(0)
        waiting.cancel()
        proxy.resume()
        assert await one.link.deliver(Outgoing("me/x", b"2"))


async def test_deliveries_end_with_the_connection(broker: Mosquitto, proxy: TcpProxy) -> None:
    async with online(proxy.url) as one:
        proxy.stall()
        waiting = [
            asyncio.ensure_future(one.link.deliver(Outgoing("me/x", bytes(10))))
            for _ in range(CONGESTED_MESSAGES)
        ]
        await until(lambda: one.link.congested)
        proxy.reset()
        assert await asyncio.gather(*waiting) == [False] * CONGESTED_MESSAGES
        assert not one.link.congested
        proxy.resume()
        await one.online()
        # Nothing of the dead connection is sent on the new one.
        before = proxy.passed[To.BROKER, Packet.PUBLISH]
        assert await one.link.deliver(Outgoing("me/x", b"last"))
        assert proxy.passed[To.BROKER, Packet.PUBLISH] - before <= 2


async def test_a_broker_that_owes_a_confirmation_is_left(
    broker: Mosquitto, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.gateway.mqtt.transport.connection.CONFIRM_SECONDS", 0.2)
    async with online(proxy.url) as one:
        await until(lambda: one.payloads == [b"1"])
        assert await one.link.deliver(Outgoing("me/x", b"confirmed"))
        proxy.drop(To.CLIENT, Packet.PUBACK, times=1)
        lost = asyncio.ensure_future(one.link.deliver(Outgoing("me/x", b"lost")))
        await until(lambda: proxy.dropped[To.CLIENT, Packet.PUBACK] == 1)
        assert await one.link.deliver(Outgoing("me/x", b"next"))
        assert await lost is False
        await one.offline("the broker does not confirm what it gets")
        await one.online()


async def test_nothing_is_done_while_there_is_nothing_to_do(broker: Mosquitto) -> None:
    async with online(broker.url, keepalive=60), party(f"mqtt://127.0.0.1:{free_port()}") as gone:
        await until(lambda: len(gone.states) > 5)
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - cpu < 0.2 * (time.monotonic() - began)


async def test_a_burst_of_deliveries_is_confirmed_whole(broker: Mosquitto) -> None:
    async with online(broker.url, "burst") as one:
        sent = [one.link.deliver(Outgoing("burst/x", b"%d" % n)) for n in range(1000)]
        assert all(await asyncio.gather(*sent))
        await until(lambda: len(one.got) == 1001)
        assert one.payloads[1:] == [b"%d" % n for n in range(1000)]
        assert not one.link.congested


def _example(example: ExampleMosquitto, user: str, password: str | None = None) -> BrokerAddress:
    return BrokerAddress.parse(
        f"mqtts://{user}@localhost:{example.port}",
        password=password or example.password,
        ca_file=example.certificates / "ca.crt",
    )
