"""One user asks far more than is theirs; the others must not feel it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.gateway.mqtt import gateway, intake
from app.gateway.mqtt.transport import link
from app.gateway.quotas import Quota, Quotas
from tests.support.brokers import Mosquitto
from tests.support.clock import VirtualClock
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import serving
from tests.support.proxied import proxied
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tcp_proxy import Packet, To

WORDS = "a reply of some words which takes a while"


@pytest.fixture(scope="module")
def roomy() -> Iterator[Mosquitto]:
    """Mosquitto drops what is past 1,000 queued messages of a client, if not told otherwise."""
    options = ["allow_anonymous true", "max_queued_messages 0", "max_inflight_messages 200"]
    with Mosquitto(options) as mosquitto:
        yield mosquitto


def of_the_modest(port: int, folder: Path, flood: int) -> tuple[list[float], int]:
    """The engine's times to first token of 10 requests while another user floods, in its virtual
    milliseconds, and how many of the flood were refused."""
    engine = ScriptedEngine(lambda _: WORDS)
    with (
        serving(port, folder, engine=engine, max_requests=100) as served,
        peer(port, user="greedy", client="g") as greedy,
        peer(port, user="modest", client="m") as modest,
    ):
        times = []
        for n in range(flood):
            greedy.ask(f"f{n}", "word " * 20, mqtt_wait=False)
        for n in range(10):
            modest.ask(f"m{n}")
            served.run(lambda n=n: modest.ends(f"m{n}"), timeout=60.0)
            assert modest.ends(f"m{n}")[0]["type"] == "final"
            times.append(modest.ends(f"m{n}")[0]["timings"]["ttft_ms"])
        served.run(lambda: num_ended(greedy) == flood, timeout=60.0)
        refused = sum(rejection.count for rejection in served.gateway._tally.rejected)
        assert {rejection.code for rejection in served.gateway._tally.rejected} <= {429}
        assert len(engine.submissions) == 10 + flood - refused
        served.check_idle()
        return sorted(times), refused


def num_ended(client: Peer) -> int:
    ends = (b'"type":"final"', b'"type":"error"')
    return len({topic for topic, payload, _ in client.messages if any(e in payload for e in ends)})


def check_flood(port: int, folder: Path, flood: int) -> None:
    alone, _ = of_the_modest(port, folder / "alone", 0)
    crowded, refused = of_the_modest(port, folder / "crowded", flood)
    assert refused > flood / 2
    assert crowded[-1] <= 2 * alone[-1]  # p95 of 10 is their worst


def test_a_flood_is_refused_and_others_wait_no_longer(roomy: Mosquitto, tmp_path: Path) -> None:
    check_flood(roomy.port, tmp_path, 500)


@pytest.mark.long
def test_a_flood_of_thousands(roomy: Mosquitto, tmp_path: Path) -> None:
    check_flood(roomy.port, tmp_path, 5000)


def test_refusals_that_are_not_confirmed_hold_up_nobody_else(
    roomy: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CONGESTED_MESSAGES", 5)
    monkeypatch.setattr(gateway, "FAREWELL_SECONDS", 0.1)  # they stay unconfirmed to its end
    with (
        proxied(roomy.port) as line,
        serving(line.port, tmp_path) as served,
        peer(roomy.port, user="greedy", client="g") as greedy,
        peer(roomy.port, user="modest", client="m") as modest,
    ):
        line.do(line.proxy.drop, To.CLIENT, Packet.PUBACK)
        for n in range(10):
            greedy.publish(greedy.topic("req", str(n)), b"{")
        greedy.wait(lambda: num_ended(greedy) == 10)
        modest.ask("1", WORDS)
        served.accepted(1)
        for number in range(1, 4):
            served.engine.advance()
            modest.wait(lambda number=number: len(modest.replies("1")) > number)
        served.run(lambda: modest.ends("1"))


@pytest.mark.parametrize("per_minute", [0, 60])
def test_users_who_are_gone_are_forgotten(per_minute: int) -> None:
    clock = VirtualClock()
    quotas = Quotas(Quota(per_minute=per_minute), {}, lambda: None, clock)
    for n in range(5000):
        quotas.check(f"user {n}")
        quotas.opened(f"user {n}")
        clock.advance(1.0)
        quotas.ended(f"user {n}")
    assert len(quotas._users) <= 1001


def test_what_is_over_quota_is_not_read(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a request of 250 kB may take 20 ms of the loop that serves everybody."""
    reads: list[bytes] = []
    parse = intake.parse_request
    monkeypatch.setattr(intake, "parse_request", lambda p, c: reads.append(p) or parse(p, c))
    slow = b'{"messages": [], "logit_bias": {%s}}' % b",".join(
        b'"%d":"x"' % n for n in range(18000)
    )
    quota = Quota(requests=1)
    with serving(broker.port, tmp_path, quota=quota) as served, peer(broker.port) as alice:
        alice.ask("1")
        served.accepted(1)
        for n in range(3):
            alice.publish(alice.topic("req", f"slow{n}"), slow)
            assert alice.end(f"slow{n}")["error"]["code"] == 429
        assert len(reads) == 1
        served.run(lambda: alice.ends("1"))
        alice.publish(alice.topic("req", "slow0"), slow)
        alice.wait(lambda: len(alice.ends("slow0")) == 2)
        assert alice.ends("slow0")[-1]["error"]["code"] == 400
