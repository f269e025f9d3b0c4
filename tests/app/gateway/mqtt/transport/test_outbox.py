"""Publishes of QoS 1 on their way: a window, and a queue for each flow."""

from __future__ import annotations

import asyncio

import pytest

from app.gateway.mqtt.transport import outbox as module
from app.gateway.mqtt.transport.messages import Outgoing
from app.gateway.mqtt.transport.outbox import WINDOW, Confirmation, Outbox, Outcome
from tests.support.clock import VirtualClock


class Socket:
    """Gives each message a packet identifier, unless it has no room."""

    def __init__(self) -> None:
        self.written: list[Outgoing] = []
        self.has_room = True

    def write(self, message: Outgoing) -> int | None:
        if not self.has_room:
            return None
        self.written.append(message)
        return len(self.written)


def message(flow: str, payload: bytes = b"") -> Outgoing:
    return Outgoing("topic", payload, flow=flow)


def confirmation() -> Confirmation:
    return asyncio.get_running_loop().create_future()


def test_flows_take_turns() -> None:
    socket = Socket()
    outbox = Outbox(socket.write)
    for n in range(2000):
        outbox.add(message("greedy", b"%d" % n), None)
    for n in range(3):
        outbox.add(message("modest", b"%d" % n), None)
    assert len(socket.written) == WINDOW
    assert (len(outbox), outbox.size("greedy"), outbox.size("modest")) == (2003, 2000, 3)
    for identifier in range(1, 7):
        outbox.confirm(identifier, Outcome.ACKNOWLEDGED)
        outbox.pump()
    flows = ["greedy", "modest"] * 3
    assert [written.flow for written in socket.written[WINDOW:]] == flows
    modest = [written.payload for written in socket.written if written.flow == "modest"]
    assert modest == [b"0", b"1", b"2"]


async def test_each_is_told_what_became_of_it() -> None:
    socket = Socket()
    outbox = Outbox(socket.write)
    outbox.window = 2
    futures = [confirmation() for _ in range(4)]
    sent = [message("one", b"%d" % n) for n in range(4)]
    for one, future in zip(sent, futures, strict=True):
        outbox.add(one, future)
    assert outbox.confirm(1, Outcome.ACKNOWLEDGED) == sent[0]
    assert outbox.confirm(1, Outcome.ACKNOWLEDGED) is None
    assert outbox.confirm(2, Outcome.REFUSED) == sent[1]
    socket.has_room = False
    outbox.pump()
    assert [future.result() for future in futures] == [
        Outcome.ACKNOWLEDGED,
        Outcome.REFUSED,
        Outcome.FULL,
        Outcome.FULL,
    ]
    assert (len(outbox), outbox.size("one")) == (0, 0)


async def test_what_is_left_is_lost_with_the_connection() -> None:
    outbox = Outbox(Socket().write)
    outbox.window = 1
    futures = [confirmation(), confirmation(), confirmation()]
    for flow, future in zip("aab", futures, strict=True):
        outbox.add(message(flow), future)
    futures[0].cancel()
    outbox.close()
    assert [future.result() for future in futures[1:]] == [Outcome.LOST] * 2
    assert (len(outbox), outbox.size("a"), outbox.size("b")) == (0, 0, 0)


def test_a_confirmation_is_owed_once_it_was_passed_over_or_none_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    clock.advance(1000.0)
    monkeypatch.setattr(module.time, "monotonic", clock)
    outbox = Outbox(Socket().write)
    assert not outbox.is_owed()
    outbox.add(message("a"), None)
    outbox.add(message("a"), None)
    clock.advance(module.CONFIRM_SECONDS)
    assert not outbox.is_owed()
    clock.advance(0.1)
    assert outbox.is_owed()
    outbox.confirm(1, Outcome.ACKNOWLEDGED)
    assert not outbox.is_owed()  # they come, if slowly
    outbox.add(message("a"), None)
    outbox.confirm(3, Outcome.ACKNOWLEDGED)
    assert outbox.is_owed()
