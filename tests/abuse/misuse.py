"""All kinds of misuse at once, from a process of its own that ends with its standard input.

`python -m tests.abuse.misuse PORT BROKER_PORT KIND ...` does all kinds, or only those stated. At
its end it prints as JSON how many rounds each has done, and how often it was answered with which
status, `closed` where the server has closed the connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from benchmarks.abuse import CHAT, HELLO, cases
from engine.api.sampling import MAX_LOGPROBS
from tests.abuse.server import ABUSER, DESCRIPTORS, MEDDLER, STORED_BYTES
from tests.app.gateway.mqtt.test_hostile import PAYLOADS, TOPICS
from tests.engine.structure.test_compiler import BOUNDED, REFUSED
from tests.support.mqtt_peer import ENDS, Peer, peer

# Clients are on other machines, and take no processor from the server.
NICENESS = 10
IDLE = DESCRIPTORS + 76
FILE_BYTES = 4 << 20
HOLD_SECONDS = 15.0
# Against a hang alone; what an honest client would wait for.
PATIENCE_SECONDS = 120.0
_CLOSED = (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError)

# What is no HTTP, or as nobody should speak it; an answer comes or the connection is closed.
GARBAGE = {
    "no HTTP": os.urandom(200),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "line": b"GET\r\n\r\n",
    "method": b"\xff\xfe / HTTP/1.1\r\nHost: x\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
    "length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
    b"Content-Length: 2\r\n\r\nab",
    "length and chunks": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"fffffffffffffffff\r\n",
    "huge length": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    b"Content-Length: 999999999999\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: x\n\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
}
# Bytes that a client of a broker sends, where MQTT was meant.
_CONNECT = bytes.fromhex("101000044d5154540402003c000461626f78")
PACKETS = (
    os.urandom(100),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x10\xff\xff\xff\xff\xff",
    b"\x10\xff\xff\xff\x7f" + bytes(1000),
    _CONNECT[:7],
    _CONNECT.replace(b"MQTT", b"MQXX"),
    _CONNECT * 2,
    _CONNECT + b"\x36\x05\x00\x01a\x00\x01",
    _CONNECT + b"\x30\x05\x00\x01#\x00\x01",
    _CONNECT + b"\x82\x02\x00\x01",
    _CONNECT + b"\x32\xff\xff\xff\x7f\x00\x01a",
    _CONNECT + b"\x00\x00" + bytes(50),
)


def post(path: str, body: object, *lines: str, key: str = MEDDLER) -> bytes:
    """A request with its body, after which the connection is closed."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"Content-Length: {len(data)}", "Content-Type: application/json", *lines)
    return head("POST", path, *lines, key=key) + data


def head(method: str, path: str, *lines: str, key: str = MEDDLER) -> bytes:
    lines = ("Host: localhost", "Connection: close", *lines)
    if key:
        lines = (*lines, f"Authorization: Bearer {key}")
    return "\r\n".join((f"{method} {path} HTTP/1.1", *lines, "", "")).encode()


def hello(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"hello {number}"}], **fields}


class Misuse:
    """
    Attributes:
        statuses: how often each kind was answered with a status, or `closed`, and its `rounds`.
    """

    def __init__(self, port: int, broker_port: int) -> None:
        self._port, self._broker_port = port, broker_port
        self._cases = cases()
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """A round of each kind, by name."""
        return {
            "idle connections": self.idle,
            "wrong keys": self.wrong_keys,
            "largest requests": self.largest,
            "malformed requests": self.malformed,
            "n with logprobs": self.many_logprobs,
            "structures": self.structures,
            "aborts": self.aborts,
            "slow readers": self.slow_readers,
            "slow senders": self.slow_senders,
            "h2c": self.h2c,
            "hosts": self.hosts,
            "live": self.live,
            "files": self.files,
            "garbage": self.garbage,
            "pipelines": self.pipelines,
            "MQTT packets": self.packets,
            "MQTT requests": self.mqtt_requests,
        }

    async def run(self, names: Sequence[str], over: asyncio.Event) -> None:
        """Kinds by name, or all, round after round."""
        kinds = self.kinds()
        tasks = [asyncio.create_task(self._go_on(name, kinds[name])) for name in names or kinds]
        waiting = asyncio.create_task(over.wait())
        done, _ = await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, waiting):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done - {waiting}:
            task.result()

    async def _go_on(self, name: str, kind: Callable[[], Awaitable[None]]) -> None:
        while True:
            await kind()
            self.statuses[name]["rounds"] += 1
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _line(
        self, port: int | None = None, *, buffer: int | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection that is reset in the end, so that thousands leave no port in use."""
        made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port or self._port))
        except BaseException:
            made.close()
            raise
        reader, writer = await asyncio.open_connection(sock=made)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _ask(self, kind: str, data: bytes, seconds: float = PATIENCE_SECONDS) -> str:
        """The status of an answer that is read to its end."""
        status = "closed"
        with suppress(*_CLOSED):
            async with asyncio.timeout(seconds), self._line() as (reader, writer):
                writer.write(data)
                # Who is refused need not have sent all.
                line = await reader.readuntil(b"\r\n")
                status = line[9:12].decode()
                while await reader.read(1 << 18):
                    pass
        self.statuses[kind][status] += 1
        return status

    async def _all(self, kind: str, requests: Iterator[bytes] | list[bytes]) -> None:
        await asyncio.gather(*(self._ask(kind, one) for one in requests))

    async def idle(self) -> None:
        async def wait() -> None:
            with suppress(*_CLOSED):
                async with asyncio.timeout(HOLD_SECONDS), self._line() as (reader, _):
                    await reader.read(1)
                    self.statuses["idle connections"]["closed"] += 1

        await asyncio.gather(*(wait() for _ in range(IDLE)))

    async def wrong_keys(self) -> None:
        keys = (f"wrong {random.random()}" for _ in range(20))
        await self._all("wrong keys", [post(CHAT, hello(), key=key) for key in keys])

    async def largest(self) -> None:
        """Two at once, each after the other in an order that differs each time."""
        every = [(path, one) for path, fields in self._cases.items() for one in fields.values()]
        random.shuffle(every)

        async def ask_some(some: list[tuple[str, Mapping[str, Any]]]) -> None:
            for path, body in some:
                await self._ask("largest requests", post(path, body, key=ABUSER))

        await asyncio.gather(ask_some(every[::2]), ask_some(every[1::2]))

    async def malformed(self) -> None:
        paths = [*self._cases]
        requests = [post(random.choice(paths), payload) for payload in PAYLOADS.values()]
        await self._all("malformed requests", requests)

    async def many_logprobs(self) -> None:
        body = hello(n=128, logprobs=True, top_logprobs=MAX_LOGPROBS, max_tokens=390)
        requests = [post(CHAT, body | {"stream": one}, key=ABUSER) for one in (False, True)]
        await self._all("n with logprobs", requests)

    async def structures(self) -> None:
        """Each is another one, so that none is compiled already."""
        stated: list[Any] = [one for one, _ in REFUSED.values()] + [*BOUNDED.values()]
        number = random.randrange(10**9)
        pattern = f"(x{number}|a|b)*a(a|b){{{random.randint(8, 16)}}}"
        names = [f"p{number}x{n}" for n in range(1500)]
        optional = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
        stated += [{"regex": pattern}, {"json_schema": optional}]
        named = {"json_schema": "json"}
        bodies = [
            hello(number, structured_outputs={named.get(k, k): v for k, v in one.items()}, n=4)
            for one in stated
        ]
        await self._all("structures", [post(CHAT, body) for body in bodies])

    async def aborts(self) -> None:
        data = post(CHAT, hello(max_tokens=500, stream=True, n=4), key=ABUSER)

        async def ask() -> None:
            with suppress(*_CLOSED):
                async with asyncio.timeout(HOLD_SECONDS), self._line() as (_, writer):
                    writer.write(data)
                    self.statuses["aborts"]["closed"] += 1
                    await asyncio.sleep(random.choice((0.0, 0.0, 0.05)))

        await asyncio.gather(*(ask() for _ in range(100)))

    async def slow_readers(self) -> None:
        body = hello(n=32, max_tokens=500, stream=True, ignore_eos=True, logprobs=True)
        data = post(CHAT, body, key=ABUSER)

        async def read() -> None:
            status = "closed"
            with suppress(*_CLOSED):
                async with asyncio.timeout(HOLD_SECONDS), self._line(buffer=4096) as line:
                    line[1].write(data)
                    status = (await line[0].readuntil(b"\r\n"))[9:12].decode()
                    while await line[0].read(16):
                        await asyncio.sleep(0.2)
            self.statuses["slow readers"][status] += 1

        await asyncio.gather(*(read() for _ in range(16)))

    async def slow_senders(self) -> None:
        whole = post(CHAT, hello())
        at = whole.index(b"\r\n\r\n") + 4

        async def send(quick: int) -> None:
            status = "closed"
            with suppress(*_CLOSED):
                async with asyncio.timeout(HOLD_SECONDS), self._line() as (_, writer):
                    writer.write(whole[:quick])
                    for byte in whole[quick:]:
                        await asyncio.sleep(0.5)
                        writer.write(bytes((byte,)))
                        await writer.drain()
            self.statuses["slow senders"][status] += 1

        await asyncio.gather(*(send(quick) for quick in (0, at) for _ in range(64)))

    async def h2c(self) -> None:
        lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
        data = post(CHAT, hello(max_tokens=4), *lines).replace(b"Connection: close\r\n", b"")
        # The connection is kept: the answer is read as far as its head.
        status = "closed"
        with suppress(*_CLOSED):
            async with asyncio.timeout(PATIENCE_SECONDS), self._line() as (reader, writer):
                writer.write(data)
                status = (await reader.readuntil(b"\r\n"))[9:12].decode()
        self.statuses["h2c"][status] += 1

    async def hosts(self) -> None:
        data = post(CHAT, hello())
        host = b"Host: localhost\r\n"
        some = [data.replace(host, b""), data.replace(host, host * 2)]
        await self._all("hosts", some * 5)

    async def live(self) -> None:
        """More listeners than one key may have, and pages of other sites."""

        async def listen(data: bytes) -> None:
            await self._ask("live", data, HOLD_SECONDS)

        other = head("GET", "/live", "Sec-Fetch-Site: cross-site", key="")
        some = [head("GET", "/live")] * 40 + [other] * 20 + [head("GET", "/live", key="x")] * 20
        await asyncio.gather(*(listen(data) for data in some))

    async def files(self) -> None:
        """Uploads up to what one user may have, and beyond; some break off; all are deleted."""
        line = json.dumps({"custom_id": "1", "method": "POST", "url": CHAT, "body": hello()})
        content = (line + "\n").encode() * (FILE_BYTES // (len(line) + 1))
        parts = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
        parts += b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        body = parts + content + b"\r\n--x--\r\n"
        form = "Content-Type: multipart/form-data; boundary=x"
        data = head("POST", "/v1/files", f"Content-Length: {len(body)}", form) + body
        for _ in range(STORED_BYTES // FILE_BYTES + 2):
            if await self._ask("files", data) == "413":
                break
        with suppress(*_CLOSED):
            async with self._line() as (_, writer):
                writer.write(data[: FILE_BYTES // 2])
                await writer.drain()
        listed = b""
        with suppress(*_CLOSED):
            async with asyncio.timeout(PATIENCE_SECONDS), self._line() as (reader, writer):
                writer.write(head("GET", "/v1/files"))
                listed = (await reader.read(-1)).partition(b"\r\n\r\n")[2]
        for one in json.loads(listed or b'{"data": []}')["data"]:
            await self._ask("files", head("DELETE", f"/v1/files/{one['id']}"))

    async def garbage(self) -> None:
        await asyncio.gather(*(self._ask("garbage", one, 5.0) for one in GARBAGE.values()))

    async def pipelines(self) -> None:
        one = head("GET", "/v1/models").replace(b"Connection: close\r\n", b"")
        await self._ask("pipelines", one * 200, 5.0)

    async def packets(self) -> None:
        async def send(data: bytes) -> None:
            with suppress(*_CLOSED):
                async with asyncio.timeout(2.0), self._line(self._broker_port) as (reader, writer):
                    writer.write(data)
                    while await reader.read(1000):
                        pass
            self.statuses["MQTT packets"]["closed"] += 1

        await asyncio.gather(*(send(data) for data in PACKETS for _ in range(4)))

    async def mqtt_requests(self) -> None:
        await asyncio.to_thread(self._burst)

    def _burst(self) -> None:
        """More than a user may have, what is no request, and then all is cancelled."""
        with (
            suppress(AssertionError),
            peer(self._broker_port, user="mallory", client=f"m{random.random()}") as mallory,
        ):
            for number in range(40):
                mallory.ask(f"r{number}", "hello " * 50, max_tokens=200, mqtt_wait=False)
            for name, payload in PAYLOADS.items():
                mallory.publish(mallory.topic("req", name), payload, wait=False)
            large = hello(max_tokens=8, stop_token_ids=[1]) | {"messages": HELLO * 1001}
            mallory.publish(mallory.topic("req", "large"), json.dumps(large), wait=False)
            mallory.publish(mallory.topic("req", "huge"), b"x" * 500_000, wait=False)
            for topic in TOPICS[:2]:
                mallory.publish(topic, b"{}", wait=False)
            with suppress(AssertionError):
                mallory.wait(lambda: len(_ends(mallory)) >= 40, 2.0)
            mallory.cancel("*")
            with suppress(AssertionError):
                mallory.wait(lambda: len(_ends(mallory)) >= 40 + len(PAYLOADS), 2.0)
            for end in _ends(mallory):
                error = end.get("error")
                self.statuses["MQTT requests"][str(error["code"]) if error else "200"] += 1


def _ends(client: Peer) -> list[dict[str, Any]]:
    replies = [json.loads(payload) for _, payload, _ in tuple(client.messages)]
    return [one for one in replies if one["type"] in ENDS]


class Misusing:
    """The process while it runs.

    Attributes:
        statuses: as `Misuse` has them, once it has ended.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, Counter[str]] = {}


@contextmanager
def misusing(port: int, broker_port: int, *names: str) -> Iterator[Misusing]:
    """Kinds of misuse by name, or all, until the context ends."""
    command = [sys.executable, "-m", "tests.abuse.misuse", str(port), str(broker_port), *names]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    one = Misusing()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield one
        printed, _ = process.communicate("")
        assert process.returncode == 0
        one.statuses = {name: Counter(found) for name, found in json.loads(printed).items()}
    finally:
        process.kill()
        process.wait()


def _main() -> None:
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    one = Misuse(int(sys.argv[1]), int(sys.argv[2]))
    print("ready", flush=True)

    async def until_closed() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            sys.stdin.read()
            loop.call_soon_threadsafe(over.set)

        threading.Thread(target=wait, daemon=True).start()
        await one.run(sys.argv[3:], over)

    asyncio.run(until_closed())
    print(json.dumps(one.statuses))


if __name__ == "__main__":
    _main()
