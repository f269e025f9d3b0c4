"""Twins: two links under one client identifier, of which the older yields."""

from __future__ import annotations

from typing import Any

import pytest

from app.gateway.mqtt.transport.link import LinkPhase, Outgoing
from tests.support.brokers import Mosquitto
from tests.support.linked import online, party, until
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.usefixtures("hurried")


def _server(name: str, boot: str) -> dict[str, Any]:
    """Will and birth of a server: kept at one topic, and of this process."""
    topic = f"{name}/status"
    return {
        "will": Outgoing(topic, f"{boot} offline".encode(), retain=True),
        "birth": lambda: (Outgoing(topic, f"{boot} online".encode(), retain=True),),
    }


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
