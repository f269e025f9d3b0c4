from __future__ import annotations

import pytest

from app.gateway.mqtt.transport.link import LinkPhase
from app.gateway.view import BadMessage, Rejection, UserView
from app.screens.feeds.gateway_watch import MqttWatch
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_gateway import ScriptedGateway
from widgets.panels.gateway_readings import BrokerState


@pytest.fixture
def gateway() -> ScriptedGateway:
    return ScriptedGateway(ScriptedEngine())


def test_without_a_gateway_there_is_nothing_to_see() -> None:
    watch = MqttWatch(None)
    watch.poll()
    assert watch.readings is None
    assert watch.new_state() is None


def test_rates_are_those_of_the_last_seconds(gateway: ScriptedGateway) -> None:
    watch = MqttWatch(gateway)
    rates = []
    # 100 messages in each of the first seconds, then one.
    for second in range(12):
        received = 100 * min(second, 4) + max(second - 4, 0)
        gateway.show(time=50.0 + second, received=received, published=2 * received)
        watch.poll()
        assert watch.readings is not None
        rates.append((watch.readings.received, watch.readings.sent))
    assert rates[0] == (0.0, 0.0)
    assert rates[1:5] == [(100.0, 200.0)] * 4
    assert rates[6] == (pytest.approx(302 / 5), pytest.approx(604 / 5))
    assert rates[9:] == [(1.0, 2.0)] * 3


@pytest.mark.parametrize("phase", LinkPhase)
def test_each_phase_of_the_link_has_its_state(phase: LinkPhase, gateway: ScriptedGateway) -> None:
    gateway.show(phase=phase, time=110.0, since=98.5, detail="why")
    watch = MqttWatch(gateway)
    watch.poll()
    assert watch.readings is not None
    assert watch.readings.state.name == phase.name
    assert watch.readings.lasted == 11.5
    assert watch.readings.detail == "why"


def test_attempts_to_connect_are_no_news(gateway: ScriptedGateway) -> None:
    watch, told = MqttWatch(gateway), []
    online, offline, trying = LinkPhase.ONLINE, LinkPhase.OFFLINE, LinkPhase.CONNECTING
    for phase in (trying, offline, trying, offline, trying, online, online, LinkPhase.TAKEN_OVER):
        gateway.show(phase=phase)
        watch.poll()
        told.append(watch.new_state())
    assert [state for state in told if state] == [
        BrokerState.OFFLINE,
        BrokerState.ONLINE,
        BrokerState.TAKEN_OVER,
    ]


def test_lists_are_carried_over_in_their_order(gateway: ScriptedGateway) -> None:
    gateway.show(
        rejected=(Rejection(429, "over the quota", 12), Rejection(400, "not JSON", 2)),
        bad=(BadMessage(2.0, "a/b", 400, "why", "{"), BadMessage(1.0, "c", 413, "big", "")),
        users=(UserView("alice", 3, 1, 0),),
        undelivered=4,
    )
    watch = MqttWatch(gateway)
    watch.poll()
    readings = watch.readings
    assert readings is not None
    assert [(r.code, r.count) for r in readings.rejected] == [(429, 12), (400, 2)]
    assert readings.bad == (
        BadMessage(2.0, "a/b", 400, "why", "{"),
        BadMessage(1.0, "c", 413, "big", ""),
    )
    assert readings.users == (UserView("alice", 3, 1, 0),)
    assert readings.undelivered == 4
