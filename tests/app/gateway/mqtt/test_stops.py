"""Requests that are stopped, by their owner and by an operator."""

from __future__ import annotations

from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import finish
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import Serving


def test_cancel_ends_one_and_star_all_of_a_client(
    served: Serving, alice: Peer, broker: Mosquitto
) -> None:
    with peer(broker.port, client="tablet") as other:
        for name in "123":
            alice.ask(name)
        other.ask("1")
        served.accepted(4)
        served.engine.advance(2)
        alice.cancel("2")
        error = alice.end("2")
        assert error["error"]["code"] == 499
        assert not error["error"]["retryable"]
        alice.cancel("*")
        assert alice.end("1")["error"]["code"] == alice.end("3")["error"]["code"] == 499
        assert finish(served, other, "1")["type"] == "final"


def test_an_operator_may_stop_a_request(served: Serving, alice: Peer) -> None:
    alice.ask("1")
    served.accepted(1)
    served.engine.abort("default/alice/phone/1")
    assert "operator" in alice.end("1")["error"]["message"]
