"""A broker with an access list: whom it keeps apart, and what it refuses us."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.gateway.mqtt import delivery
from tests.support.brokers import Mosquitto
from tests.support.mqtt_peer import peer
from tests.support.mqtt_serving import serving

USERS = ("server", "alice", "mallory")
DENIAL = "topic deny llm/v1/default/rep/alice/#\n"
ACCESS = """
user server
topic readwrite llm/v1/#
pattern write llm/v1/default/req/%u/%c/+
pattern write llm/v1/default/cancel/%u/%c/+
pattern read llm/v1/default/rep/%u/%c/#
"""


@pytest.fixture
def access(tmp_path: Path) -> Path:
    file = tmp_path / "access"
    file.write_text(ACCESS)
    return file


@pytest.fixture
def guarded(access: Path, tmp_path: Path) -> Iterator[Mosquitto]:
    """A user's password is the name."""
    passwords = tmp_path / "passwords"
    passwords.write_text("".join(f"{user}:{user}\n" for user in USERS))
    subprocess.run(["mosquitto_passwd", "-U", passwords], check=True)
    for file in (access, passwords):
        file.chmod(0o600)
    with Mosquitto([f"acl_file {access}", f"password_file {passwords}"]) as broker:
        yield broker


def peer_of(broker: Mosquitto, user: str, **kwargs: Any) -> Any:
    return peer(broker.port, user=user, client=f"{user}-1", password=user, **kwargs)


def serving_of(broker: Mosquitto, folder: Path) -> Any:
    return serving(broker.port, folder, login="server", quota={"requests": 100})


def test_nobody_asks_cancels_or_listens_for_another(guarded: Mosquitto, tmp_path: Path) -> None:
    with (
        serving_of(guarded, tmp_path) as served,
        peer_of(guarded, "alice") as alice,
        peer_of(guarded, "mallory") as mallory,
    ):
        mallory.watch("llm/v1/#")
        alice.ask("1")
        served.accepted(1)
        for topic in (alice.topic("req", "2"), alice.topic("cancel", "*")):
            mallory.publish(topic, b"{}")
        mallory.publish(f"llm/v1/default/node/{served.gateway.view().node}/knobs/set", b"{}")
        mallory.ask("own")
        served.run(lambda: alice.ends("1") and mallory.ends("own"))
        assert alice.ends("1")[0]["type"] == "final"
        assert len(served.engine.submissions) == 2
        mallory_only = f"llm/v1/default/rep/mallory/{mallory.client}/"
        assert all(topic.startswith(mallory_only) for topic, _, _ in mallory.messages)


def test_what_the_broker_refuses_is_told_once_it_does_not(
    guarded: Mosquitto,
    access: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Tried at 0, 0.3, 0.9, 2.1 and 4.5 s.
    monkeypatch.setattr(delivery, "REFUSED_SECONDS", 0.3)
    access.write_text(ACCESS.replace("user server\n", f"user server\n{DENIAL}"))
    reload(guarded)
    with (
        serving_of(guarded, tmp_path) as served,
        peer_of(guarded, "alice") as alice,
        peer_of(guarded, "mallory") as other,
    ):
        # More than Mosquitto lets be unconfirmed at once.
        names = [str(n) for n in range(25)]
        for name in names:
            alice.ask(name)
            alice.publish(alice.topic("req", f"bad-{name}"), b"{")
        other.ask("1")
        served.run(lambda: other.ends("1"))
        served.run(lambda: len(served.gateway._delivery) == len(names))
        served.until(lambda: served.gateway._link.denied > 4 * len(names))
        assert not alice.messages
        refusals = [r for r in caplog.records if "refuses what we publish" in r.getMessage()]
        assert len(refusals) == 1
        access.write_text(ACCESS)
        reload(guarded)
        for name in names:
            assert alice.end(name)["type"] == "final"
        served.check_idle()


def reload(broker: Mosquitto) -> None:
    assert broker._process is not None
    broker._process.send_signal(signal.SIGHUP)
