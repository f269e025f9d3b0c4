"""Asking: clients of the HTTP interface in a process of their own, which reads the clock of all.

    python -m benchmarks.http.asking < ASKS > HEARD

It takes a list of asks as JSON and gives as many of what was heard. Each has a connection of its
own, speaks as little HTTP as is needed, and takes no more of a core than it must.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

_PATH = "/v1/chat/completions"
_EARLY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A chat of one message, streamed.

    Attributes:
        at: when it is sent, in monotonic seconds; the connection is made a second before.
        reads: whether the client reads the answer. One that does not holds the line for `seconds`.
        seconds: how long at most.
        is_idle: whether it only connects, and holds the line.
        fields: what else the request states.
    """

    text: str
    num_tokens: int
    at: float
    seconds: float
    reads: bool = True
    is_idle: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Heard:
    """The reply to one request.

    Attributes:
        sent_at: when it was sent.
        times: when each event with text came.
        text: the whole reply.
        is_whole: whether the stream came to its end.
    """

    sent_at: float = 0.0
    times: list[float] = field(default_factory=list)
    text: str = ""
    is_whole: bool = False


class Asking:
    """Clients at work, in their process."""

    def __init__(self, host: str, port: int, asks: Sequence[Ask]) -> None:
        command = [sys.executable, "-m", "benchmarks.http.asking"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdin is not None
        plan = {"host": host, "port": port, "asks": [asdict(ask) for ask in asks]}
        self.process.stdin.write(json.dumps(plan))
        self.process.stdin.close()

    def heard(self) -> list[Heard]:
        """Wait for all to end."""
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.read())
        if self.process.wait():
            raise RuntimeError("the clients failed")
        return [Heard(**one) for one in told]


async def _ask(host: str, port: int, ask: Ask) -> Heard:
    heard = Heard()
    # A gateway does not wait long for a request on a connection that is new.
    await asyncio.sleep(max(0.0, ask.at - time.monotonic() - _EARLY_SECONDS))
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + ask.seconds):
            await _talk(reader, writer, ask, heard)
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()
    return heard


async def _talk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: Ask, heard: Heard
) -> None:
    if ask.is_idle:
        await asyncio.sleep(ask.seconds)
        return
    messages = [{"role": "user", "content": ask.text}]
    stated = {"messages": messages, "max_tokens": ask.num_tokens, "stream": True, **ask.fields}
    body = json.dumps(stated).encode()
    head = f"POST {_PATH} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    await asyncio.sleep(max(0.0, ask.at - time.monotonic()))
    heard.sent_at = time.monotonic()
    writer.write(head.encode() + body)
    if not ask.reads:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(ask.seconds)
        return
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            heard.times.append(time.monotonic())
            choice = json.loads(line[6:])["choices"][0]
            heard.text += choice["delta"].get("content") or ""
        elif line.startswith(b"data: [DONE]"):
            heard.is_whole = True
            return


async def _all(host: str, port: int, asks: Sequence[Ask]) -> list[Heard]:
    return list(await asyncio.gather(*(_ask(host, port, ask) for ask in asks)))


def main() -> None:
    plan = json.load(sys.stdin)
    asks = [Ask(**one) for one in plan["asks"]]
    heard = asyncio.run(_all(plan["host"], plan["port"], asks))
    json.dump([asdict(one) for one in heard], sys.stdout)


if __name__ == "__main__":
    main()
