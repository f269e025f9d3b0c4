"""Party: a link to a broker, and all that came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import Inbound, Link, LinkPhase, LinkState, Outgoing

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
