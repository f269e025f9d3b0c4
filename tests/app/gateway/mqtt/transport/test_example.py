"""examples/mosquitto as it stands: who may do what, and what it takes."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from app.gateway.mqtt.protocol.topics import Caller, Topics
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import Outcome, Outgoing
from tests.support.brokers import ExampleMosquitto
from tests.support.linked import online, until

TOPICS = Topics("default", "box")
ALICE = Caller("default", "alice", "phone", "1")
BOB = Caller("default", "bob", "phone", "1")


def _address(example: ExampleMosquitto, user: str) -> BrokerAddress:
    return BrokerAddress.parse(
        f"mqtts://{user}@localhost:{example.port}",
        password=example.password,
        ca_file=example.certificates / "ca.crt",
    )


@pytest.mark.parametrize(
    ("user", "may", "may_not"),
    [
        (
            "alice",
            [ALICE.request_topic, ALICE.cancel_topic],
            [
                ALICE.reply_topic,
                BOB.request_topic,
                BOB.cancel_topic,
                TOPICS.status,
                TOPICS.knobs_set,
            ],
        ),
        (
            "batchdeck",
            [ALICE.reply_topic, TOPICS.status, TOPICS.metrics, TOPICS.knobs, TOPICS.knobs_result],
            [ALICE.request_topic, ALICE.cancel_topic, TOPICS.knobs_set],
        ),
        ("operator", [TOPICS.knobs_set], [TOPICS.status, ALICE.request_topic, ALICE.reply_topic]),
    ],
)
async def test_who_may_publish_what(
    example: ExampleMosquitto, user: str, may: list[str], may_not: list[str]
) -> None:
    options = {"subscriptions": (), "birth": tuple}
    async with online(_address(example, user), "phone", **options) as one:
        for topic in may:
            assert await one.link.deliver(Outgoing(topic, b"")) is Outcome.ACKNOWLEDGED, topic
        for topic in may_not:
            assert await one.link.deliver(Outgoing(topic, b"")) is Outcome.REFUSED, topic


async def test_who_gets_what(example: ExampleMosquitto) -> None:
    everything = {"subscriptions": (("#", 1),), "birth": tuple}
    async with (
        online(_address(example, "batchdeck"), "server", **everything) as server,
        online(_address(example, "operator"), "desk", **everything) as operator,
        online(_address(example, "alice"), "phone", **everything) as alice,
        online(_address(example, "bob"), "phone-b", **everything) as bob,
    ):
        said = (ALICE.reply_topic, BOB.reply_topic, TOPICS.status, TOPICS.metrics)
        for topic in said:
            assert await server.link.deliver(Outgoing(topic, b"")) is Outcome.ACKNOWLEDGED
        assert await alice.link.deliver(Outgoing(ALICE.request_topic, b"")) is Outcome.ACKNOWLEDGED
        assert await operator.link.deliver(Outgoing(TOPICS.knobs_set, b"")) is Outcome.ACKNOWLEDGED
        expected = {
            server: [TOPICS.status, ALICE.request_topic, TOPICS.knobs_set],
            operator: [TOPICS.status, TOPICS.metrics, TOPICS.knobs_set],
            alice: [ALICE.reply_topic, TOPICS.status],
            bob: [TOPICS.status],
        }
        for one, topics in expected.items():
            await until(lambda one=one, topics=topics: len(one.got) >= len(topics))  # type: ignore[misc]
            assert [message.topic for message in one.got] == topics


async def test_a_burst_is_queued_for_a_server_that_is_away(example: ExampleMosquitto) -> None:
    options = {"subscriptions": ((TOPICS.requests, 1),), "birth": tuple}
    async with online(_address(example, "batchdeck"), "server-away", **options):
        pass
    nothing = {"subscriptions": (), "birth": tuple}
    async with online(_address(example, "alice"), "phone", **nothing) as alice:
        topics = [f"llm/v1/default/req/alice/phone/{number}" for number in range(2000)]
        sent = [alice.link.deliver(Outgoing(topic, b"")) for topic in topics]
        assert set(await asyncio.gather(*sent)) == {Outcome.ACKNOWLEDGED}
    async with online(_address(example, "batchdeck"), "server-away", **options) as server:
        await until(lambda: len(server.got) == len(topics))
        assert [message.topic for message in server.got] == topics


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.7", "IP Address:10.0.0.7"),
        ("::1", "IP Address:0:0:0:0:0:0:0:1"),
        ("broker.example.org", "DNS:broker.example.org"),
        ("cafe.de", "DNS:cafe.de"),
    ],
)
def test_the_certificate_is_for_the_name_or_address(host: str, name: str, tmp_path: Path) -> None:
    script = Path("examples/mosquitto/certificates.sh").resolve()
    subprocess.run([script, host], cwd=tmp_path, check=True, capture_output=True)
    show = ["openssl", "x509", "-in", "certificates/server.crt", "-noout"]
    shown = subprocess.check_output([*show, "-ext", "subjectAltName"], cwd=tmp_path, text=True)
    assert shown.split("\n")[1].strip() == name
