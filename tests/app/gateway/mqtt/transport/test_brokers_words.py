"""A broker's reasons at the end, and bytes that are not MQTT at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from app.gateway.mqtt.transport.link import LinkPhase
from tests.support.linked import TIMEOUT, Party, party, until
from tests.support.tcp_proxy import Packet, read_packet

pytestmark = pytest.mark.usefixtures("hurried")


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
