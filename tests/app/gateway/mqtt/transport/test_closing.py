"""Closing a link, at any moment: it leaves nothing behind and waits for nobody."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from app.gateway.mqtt.transport.connection import Connection
from app.gateway.mqtt.transport.link import GOODBYE_SECONDS, LinkPhase, Outcome, Outgoing
from tests.support.brokers import Mosquitto
from tests.support.linked import Party, online, party, until

pytestmark = pytest.mark.usefixtures("hurried")


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


async def test_close_does_not_wait_for_a_frozen_broker() -> None:
    with Mosquitto() as broker:
        one = Party(broker.url, "me")
        running = asyncio.create_task(one.link.run())
        await one.online()
        broker.freeze()
        # More than the socket's buffers hold, so that DISCONNECT cannot be written.
        while not one.link.congested(1):
            for _ in range(100):
                one.link.send(Outgoing("me/x", bytes(10_000), qos=0))
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(one.link.deliver(Outgoing("me/x", b"")))
        await asyncio.sleep(0)
        began = time.monotonic()
        await one.link.close()
        assert time.monotonic() - began < GOODBYE_SECONDS / 5 + 0.5
        assert await waiting is Outcome.LOST
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
