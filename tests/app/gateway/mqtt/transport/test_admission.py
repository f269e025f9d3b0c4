"""Whom a broker lets in, and what it lets them publish."""

from __future__ import annotations

from typing import Any

import pytest

from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import LinkPhase, Outcome, Outgoing
from tests.support.brokers import ExampleMosquitto, Mosquitto, free_port
from tests.support.linked import online, party, until

pytestmark = pytest.mark.usefixtures("hurried")


async def test_a_denied_publish_is_not_delivered_and_told_once(
    example: ExampleMosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    async with online(_example(example, "alice"), "phone", subscriptions=(), birth=tuple) as alice:
        assert (
            await alice.link.deliver(Outgoing("llm/v1/default/req/alice/phone/1", b"mine"))
            is Outcome.ACKNOWLEDGED
        )
        for number in range(3):
            topic = f"llm/v1/default/req/bob/phone/{number}"
            assert await alice.link.deliver(Outgoing(topic, b"not mine")) is Outcome.REFUSED
        assert alice.link.denied == 3
        assert alice.link.state.phase is LinkPhase.ONLINE
    assert caplog.text.count("refuses what we publish below 'llm/v1/default/req/bob/phone'") == 1
    assert "not authorized" in caplog.text


async def test_a_packet_larger_than_the_broker_takes_is_not_sent(
    example: ExampleMosquitto,
) -> None:
    async with online(_example(example, "alice"), "phone", subscriptions=(), birth=tuple) as alice:
        topic = "llm/v1/default/req/alice/phone/1"
        assert await alice.link.deliver(Outgoing(topic, bytes(1 << 20))) is Outcome.TOO_LARGE
        assert (
            await alice.link.deliver(Outgoing(topic, bytes((1 << 20) - 100)))
            is Outcome.ACKNOWLEDGED
        )
        assert alice.link.reconnects == 0


@pytest.mark.parametrize("protocol", ["auto", "3.1.1"])
async def test_a_wrong_password_is_told_in_words_and_tried_again(
    example: ExampleMosquitto, protocol: str
) -> None:
    address = _example(example, "alice", password="s3cr3t")
    async with party(address, "phone", protocol=protocol) as one:
        await one.offline("the user or the password is wrong")
        await until(lambda: len(one.states) >= 4)
        phases = ["connecting", "offline", "connecting", "offline"]
        assert [state.phase for state in one.states[:4]] == phases
        assert "s3cr3t" not in repr(one.states)


async def test_a_client_certificate_names_the_user(example: ExampleMosquitto) -> None:
    files = {
        "ca_file": example.certificates / "ca.crt",
        "cert_file": example.certificates / "alice.crt",
        "key_file": example.certificates / "alice.key",
    }
    url = f"mqtts://localhost:{example.certificate_port}"
    async with online(
        BrokerAddress.parse(url, **files), "phone", subscriptions=(), birth=tuple
    ) as alice:
        assert alice.link.state.protocol == "5"
        assert (
            await alice.link.deliver(Outgoing("llm/v1/default/req/alice/phone/1", b""))
            is Outcome.ACKNOWLEDGED
        )
        assert (
            await alice.link.deliver(Outgoing("llm/v1/default/req/bob/phone/1", b""))
            is Outcome.REFUSED
        )
    plain = BrokerAddress.parse(url, ca_file=files["ca_file"])
    async with party(plain, "phone") as nobody:
        await nobody.offline("for a client certificate")


async def test_a_broker_with_an_unknown_or_anothers_certificate_is_not_talked_to(
    example: ExampleMosquitto,
) -> None:
    unknown = BrokerAddress.parse(f"mqtts://localhost:{example.port}")
    async with party(unknown) as one:
        await one.offline("the broker's certificate is signed by an unknown authority; set ca_file")
    another = BrokerAddress.parse(
        f"mqtts://127.0.0.1:{example.port}", ca_file=example.certificates / "ca.crt"
    )
    async with party(another) as one:
        await one.offline("the broker's certificate is for another host than the address has")


async def test_what_is_not_there_is_told_in_words(
    broker: Mosquitto, example: ExampleMosquitto, tmp_path: Any
) -> None:
    addresses = {
        "no broker listens there": BrokerAddress.parse(f"mqtt://127.0.0.1:{free_port()}"),
        "the host is not known": BrokerAddress.parse("mqtt://no-such-host.invalid"),
        "another program at its address, closed": BrokerAddress.parse(
            f"mqtts://127.0.0.1:{broker.port}"
        ),
        "does not speak MQTT over websockets": BrokerAddress.parse(f"ws://127.0.0.1:{broker.port}"),
        "closed the connection without a reason": BrokerAddress.parse(
            f"mqtt://127.0.0.1:{example.port}"
        ),
        "ca_file is": BrokerAddress.parse("mqtts://127.0.0.1", ca_file=tmp_path / "none"),
    }
    for words, address in addresses.items():
        async with party(address) as one:
            await one.offline(words)


def _example(example: ExampleMosquitto, user: str, password: str | None = None) -> BrokerAddress:
    return BrokerAddress.parse(
        f"mqtts://{user}@localhost:{example.port}",
        password=password or example.password,
        ca_file=example.certificates / "ca.crt",
    )
