"""Two servers under one client identifier: the older one yields, and they do not fight."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.gateway.mqtt.transport import link
from app.gateway.mqtt.transport.link import LinkPhase
from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import peer
from tests.support.mqtt_serving import Serving, serving
from tests.support.proxied import proxied


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(link, "MAX_PAUSE_SECONDS", 0.5)


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_one_of_two_yields_until_it_is_told_to_come_back(tmp_path: Path, protocol: str) -> None:
    with (
        Mosquitto() as broker,
        proxied(broker.port) as way,
        peer(broker.port) as alice,
        serving(way.port, tmp_path / "1", protocol=protocol) as first,
        serving(way.port, tmp_path / "2", protocol=protocol) as second,
    ):
        gone, serving_now = settled(first, second)
        assert "client identifier" in gone.gateway.failure
        assert not serving_now.gateway.failure
        connections = way.proxy.connections
        assert connections <= 8
        alice.ask("1")
        serving_now.accepted(1)
        # What says so to alice went to the broker behind the acknowledgement of the request, which
        # the broker would otherwise send to the one that comes back.
        alice.wait(lambda: alice.replies("1"))
        assert not gone.engine.submissions

        gone.gateway.reconnect()
        gone.until(lambda: phase(gone) is LinkPhase.ONLINE)
        assert settled(first, second) == (serving_now, gone)
        assert way.proxy.connections <= connections + 8
        # What ends while nobody can be told is told once they can.
        serving_now.engine.finish_all()
        connections = way.proxy.connections
        alice.ask("2")
        gone.run(lambda: alice.ends("2"))
        assert not alice.ends("1")
        assert way.proxy.connections <= connections + 1, "they fight"

        gone.stop(0.0)
        serving_now.gateway.reconnect()
        assert alice.end("1")["type"] == "final"
        assert not serving_now.gateway.failure
        serving_now.check_idle()


def test_a_reconnect_that_has_nothing_to_do_starts_no_fight(tmp_path: Path) -> None:
    with (
        Mosquitto() as broker,
        proxied(broker.port) as way,
        serving(way.port, tmp_path / "1") as first,
    ):
        first.gateway.reconnect()  # it is online
        with serving(way.port, tmp_path / "2") as second:
            gone, serving_now = settled(first, second)
            connections = way.proxy.connections
            with peer(broker.port) as alice:
                alice.ask("1")
                serving_now.run(lambda: alice.ends("1"))
            assert phase(gone) is LinkPhase.TAKEN_OVER
            # The one that yielded may have thrown the other out in doing so.
            assert way.proxy.connections <= connections + 1


def settled(first: Serving, second: Serving) -> tuple[Serving, Serving]:
    """The one that has yielded and the one that serves, once that is decided."""
    phases = {LinkPhase.TAKEN_OVER, LinkPhase.ONLINE}
    first.until(lambda: {phase(first), phase(second)} == phases)
    return (first, second) if phase(first) is LinkPhase.TAKEN_OVER else (second, first)


def phase(served: Serving) -> LinkPhase:
    return served.gateway.view().phase
