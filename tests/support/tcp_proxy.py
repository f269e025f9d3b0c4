"""TcpProxy: between a client and a broker, to do to their packets what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from enum import Enum, IntEnum
from typing import Self

READ_BYTES = 65536


class Packet(IntEnum):
    """MQTT's packet types."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    SUBSCRIBE = 8
    SUBACK = 9
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class To(Enum):
    """Which way a packet goes."""

    BROKER = "broker"
    CLIENT = "client"


class TcpProxy:
    """Listens on the loopback and passes packets on, whole and in order. For plain MQTT.

    A context that starts it, and closes it with all its connections. All calls are the event
    loop's.

    Args:
        target: the broker's port.

    Attributes:
        delay: s that each packet waits before it is passed on.
        connections: made so far.
        passed: packets passed on, by way and type.
        dropped: packets dropped, likewise.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.connections = 0
        self.passed: Counter[tuple[To, int]] = Counter()
        self.dropped: Counter[tuple[To, int]] = Counter()
        self._to_drop: dict[tuple[To, int], float] = {}
        self._flows = asyncio.Event()
        self._flows.set()
        self._pipes: set[_Pipe] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def drop(self, way: To, packet: Packet, times: float = float("inf")) -> None:
        """Drop the next `times` packets of a type."""
        self._to_drop[way, packet] = times

    def pass_on(self) -> None:
        """Drop no more packets, and delay none."""
        self._to_drop.clear()
        self.delay = 0.0

    def stall(self) -> None:
        """Pass nothing on and read nothing, so that buffers fill, until `resume`."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def reset(self) -> None:
        """End every connection by RST, both ways."""
        for pipe in tuple(self._pipes):
            pipe.reset()

    def half_close(self, way: To) -> None:
        """Say on every connection that no more will come this way; the other goes on."""
        for pipe in tuple(self._pipes):
            pipe.half_close(way)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.resume()
        pipes = tuple(self._pipes)
        for pipe in pipes:
            pipe.reset()
        await asyncio.gather(*(pipe.ended.wait() for pipe in pipes))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            broker = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pipe = _Pipe(self, (reader, writer), broker)
        self._pipes.add(pipe)
        try:
            await pipe.run()
        finally:
            self._pipes.discard(pipe)

    async def admit(self, way: To, packet: bytes) -> bool:
        """Wait until a packet may go on; False drops it."""
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._flows.wait()
        key = (way, packet[0] >> 4)
        if self._to_drop.get(key, 0) > 0:
            self._to_drop[key] -= 1
            self.dropped[key] += 1
            return False
        self.passed[key] += 1
        return True


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Pipe:
    """One connection through the proxy."""

    def __init__(self, proxy: TcpProxy, client: _Stream, broker: _Stream) -> None:
        self._proxy = proxy
        self._client, self._broker = client, broker
        self._writers = {To.BROKER: broker[1], To.CLIENT: client[1]}
        for writer in self._writers.values():
            # So that a stalled reader is felt by the sender at once, not after megabytes.
            writer.transport.set_write_buffer_limits(high=READ_BYTES)
        self._tasks: list[asyncio.Task[None]] = []
        self.ended = asyncio.Event()

    async def run(self) -> None:
        self._tasks = [
            asyncio.create_task(self._pump(To.BROKER, self._client[0])),
            asyncio.create_task(self._pump(To.CLIENT, self._broker[0])),
        ]
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers.values():
            writer.transport.abort()
        self.ended.set()

    def reset(self) -> None:
        for writer in self._writers.values():
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    def half_close(self, way: To) -> None:
        with contextlib.suppress(OSError):
            self._writers[way].write_eof()

    async def _pump(self, way: To, reader: asyncio.StreamReader) -> None:
        writer = self._writers[way]
        try:
            while True:
                packet = await read_packet(reader)
                if await self._proxy.admit(way, packet) and not writer.transport.is_closing():
                    writer.write(packet)
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError, RuntimeError):
            # The sender has ended; so does what goes on, after what was passed.
            self.half_close(way)


async def read_packet(reader: asyncio.StreamReader) -> bytes:
    """A control packet: type and flags, remaining length (MQTT 3.1.1, 2.2.3), the rest."""
    head = await reader.readexactly(1)
    length = shift = 0
    while True:
        head += await reader.readexactly(1)
        length |= (head[-1] & 0x7F) << shift
        shift += 7
        if not head[-1] & 0x80:
            return head + await reader.readexactly(length)
