"""Alerts are raised once when a limit is passed, and end when it is kept for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.screens.feeds.alerts import CALM_SECONDS, PREEMPTION_SECONDS, Alerts
from app.settings.alerts import AlertRules
from engine.api.snapshot import Snapshot
from tests.support.clock import VirtualClock
from tests.support.scripted_engine import ScriptedEngine
from widgets.panels.gateway_readings import BrokerState, MqttReadings


@pytest.fixture
def snapshot() -> Snapshot:
    snapshot = ScriptedEngine().snapshot()
    assert snapshot is not None
    return snapshot


def with_kv(snapshot: Snapshot, share: float) -> Snapshot:
    total = snapshot.blocks.num_blocks
    return replace(snapshot, blocks=replace(snapshot.blocks, used=round(share * total)))


def alerts(**rules: object) -> tuple[Alerts, VirtualClock]:
    clock = VirtualClock(0.0)
    return Alerts(AlertRules.model_validate(rules), clock), clock


def test_nothing_is_told_unless_it_is_asked_for(snapshot: Snapshot) -> None:
    watch, _ = alerts()
    assert watch.check(with_kv(snapshot, 1.0), None) == []


def test_a_figure_that_swings_about_its_limit_is_one_alert(snapshot: Snapshot) -> None:
    watch, clock = alerts(kv=True)
    reported = []
    for share in (0.5, 0.97, 0.93, 0.98, 0.94, 0.99):
        reported += watch.check(with_kv(snapshot, share), None)
        clock.advance(CALM_SECONDS)
    assert [(a.name, a.is_over) for a in reported] == [("kv", False)]
    assert "limit 95%" in reported[0].text


def test_it_is_over_when_the_limit_is_kept_for_a_while_and_can_be_raised_again(
    snapshot: Snapshot,
) -> None:
    watch, clock = alerts(kv=80)
    assert len(watch.check(with_kv(snapshot, 0.9), None)) == 1
    clock.advance(CALM_SECONDS / 2)
    assert watch.check(with_kv(snapshot, 0.1), None) == []
    clock.advance(CALM_SECONDS / 2)
    (over,) = watch.check(with_kv(snapshot, 0.1), None)
    assert over.is_over
    assert watch.check(with_kv(snapshot, 0.1), None) == []
    assert len(watch.check(with_kv(snapshot, 0.9), None)) == 1


def test_a_latency_is_held_against_its_target_once_there_are_samples(snapshot: Snapshot) -> None:
    watch, _ = alerts(ttft=True)
    few = replace(snapshot.latency.ttft, count=1, p99=9.0)
    many = replace(few, count=50)
    seen = replace(snapshot, latency=replace(snapshot.latency, ttft=few))
    assert watch.check(seen, None) == []
    seen = replace(snapshot, latency=replace(snapshot.latency, ttft=many))
    (alert,) = watch.check(seen, None)
    assert alert.text == "Time to first token, p99: 900% of the target, limit 100% of the target"


def test_preemptions_are_counted_over_a_minute(snapshot: Snapshot) -> None:
    watch, clock = alerts(preemptions=2)
    totals = snapshot.totals
    for number, reported in ((10, 0), (12, 0), (13, 1), (14, 0)):
        seen = replace(snapshot, totals=replace(totals, preemptions=number))
        assert len(watch.check(seen, None)) == reported, number
        clock.advance(1.0)
    clock.advance(PREEMPTION_SECONDS)
    (over,) = watch.check(seen, None)
    assert over.is_over
    other = replace(snapshot, totals=replace(totals, preemptions=1))  # another model
    assert watch.check(other, None) == []


def test_a_broker_that_is_away_for_long_is_told() -> None:
    watch, _ = alerts(broker=True)
    here = readings(BrokerState.ONLINE, 100.0)
    assert watch.check(None, here) == []
    assert watch.check(None, readings(BrokerState.OFFLINE, 1.0)) == []
    assert watch.check(None, readings(BrokerState.CONNECTING, 1.0)) == []
    (alert,) = watch.check(None, readings(BrokerState.OFFLINE, 8.0))
    assert alert.text == "MQTT broker unreachable: 8.00s, limit 5.00s"
    assert watch.check(None, None) == []


def readings(state: BrokerState, lasted: float) -> MqttReadings:
    return MqttReadings(
        address="mqtt://localhost",
        state=state,
        detail="",
        lasted=lasted,
        protocol="5",
        pool="p",
        node="n",
        received=0.0,
        sent=0.0,
        running=0,
        waiting=0,
        undelivered=0,
        accepted=0,
        finished=0,
        rejected=(),
        first_token=None,  # type: ignore[arg-type]
        bad=(),
        users=(),
    )


def test_rules_that_are_turned_off_forget_what_they_raised(snapshot: Snapshot) -> None:
    watch, _ = alerts(kv=50)
    assert len(watch.check(with_kv(snapshot, 0.9), None)) == 1
    watch.rules = AlertRules()
    assert watch.check(with_kv(snapshot, 0.9), None) == []
    watch.rules = AlertRules(kv=50)
    assert len(watch.check(with_kv(snapshot, 0.9), None)) == 1
