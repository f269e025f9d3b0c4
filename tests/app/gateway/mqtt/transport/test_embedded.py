from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.embedded import STOP_SECONDS, BrokerError, EmbeddedBroker
from tests.support.brokers import free_port


def test_it_listens_on_the_loopback_until_it_stops() -> None:
    port = free_port()
    threads = set(threading.enumerate())
    broker = EmbeddedBroker(port)
    assert broker.start() == broker.url == f"mqtt://127.0.0.1:{port}"
    try:
        with socket.create_connection(("127.0.0.1", port)):
            began = time.monotonic()
            broker.stop()
        assert time.monotonic() - began < STOP_SECONDS
    finally:
        broker.stop()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert set(threading.enumerate()) <= threads
    with EmbeddedBroker(port) as again:
        assert again.url == broker.url


def test_what_is_retained_goes_to_those_who_subscribe(amqtt: EmbeddedBroker) -> None:
    """And, under the rules of MQTT, to nobody else who connects."""
    port = int(amqtt.url.rpartition(":")[2])

    def run(program: str, *options: str) -> str:
        command = [program, "-V", "311", "-p", str(port), "-q", "1", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout

    def subscriber() -> subprocess.Popen[str]:
        command = ["mosquitto_sub", "-V", "311", "-p", str(port), "-t", "news/+", "-W", "20"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    run("mosquitto_pub", "-t", "news/1", "-m", "fresh", "-r")
    with subscriber() as first, subscriber() as second:
        for each in (first, second):
            assert each.stdout is not None
            assert each.stdout.readline() == "fresh\n"
        run("mosquitto_pub", "-t", "other/1", "-m", "old", "-r")
        assert run("mosquitto_sub", "-t", "other/+", "-C", "1", "-W", "10") == "old\n"
        first.kill()
        second.kill()


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost"])
def test_it_listens_where_its_address_says(host: str) -> None:
    port = free_port()
    with EmbeddedBroker(port, host=host) as broker:
        address = BrokerAddress.parse(broker.url)
        assert (address.host, address.port) == (host, port)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, *_, place in found:
            with socket.socket(family) as probe:
                assert probe.connect_ex(place) == 0
        others = {"127.0.0.1", "::1", "127.0.0.2"} - {str(place[0]) for *_, place in found}
        for other in others:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, port))


def test_a_host_that_is_not_here_is_told() -> None:
    with pytest.raises(BrokerError, match=r"^port 1883 of 192\.0\.2\.1 cannot be listened on: "):
        EmbeddedBroker(host="192.0.2.1").start()


def test_clients_that_go_without_a_word_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with EmbeddedBroker(0) as broker:
        place = ("127.0.0.1", int(broker.url.rpartition(":")[2]))
        before = descriptors()
        for number in range(200):
            with socket.create_connection(place) as client:
                if number % 3 == 1:
                    client.send(b"\x10")
                elif number % 3 == 2:  # a reset
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        deadline = time.monotonic() + 10.0
        while descriptors() > before:
            assert time.monotonic() < deadline, f"{descriptors() - before} are left open"
            time.sleep(0.01)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BrokerError) as caught:
            EmbeddedBroker(port).start()
    assert str(caught.value).startswith(f"port {port} of 127.0.0.1 is taken, perhaps by another")


def test_amqtt_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amqtt.broker", None)
    with pytest.raises(BrokerError, match=r"pip install 'batchdeck\[broker\]'"):
        EmbeddedBroker(0).start()


def test_a_broker_that_was_not_started_may_be_stopped() -> None:
    EmbeddedBroker(0).stop()
