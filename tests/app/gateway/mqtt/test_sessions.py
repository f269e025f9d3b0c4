"""Sessions over MQTT: what is kept of a chat, whose it is, one turn at a time."""

from __future__ import annotations

from pathlib import Path

from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import finish
from tests.support.mqtt_peer import Peer, peer
from tests.support.mqtt_serving import Serving, serving


def test_a_session_sends_only_what_is_new_and_hits_the_cache(served: Serving, alice: Peer) -> None:
    first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one " * 40}]
    alice.ask("1", session_id="s", messages=first)
    served.accepted(1)
    finish(served, alice, "1")
    alice.ask("2", "and now", session_id="s")
    served.accepted(2)
    final = finish(served, alice, "2")

    submission = served.engine.submissions[1]
    assert [m.role for m in submission.messages] == ["system", "user", "assistant", "user"]
    assert submission.context is not None
    assert final["usage"]["cached_tokens"] > 30


def test_a_session_is_kept_over_a_restart(broker: Mosquitto, alice: Peer, tmp_path: Path) -> None:
    with serving(broker.port, tmp_path) as served:
        alice.ask("1", "first", session_id="s")
        served.accepted(1)
        finish(served, alice, "1")
    with serving(broker.port, tmp_path) as served:
        alice.ask("2", "second", session_id="s")
        served.accepted(1)
        finish(served, alice, "2")
        told = [m.content for m in served.engine.submissions[0].messages]
        assert told == ["first", "You said: first", "second"]
        assert served.engine.submissions[0].context is not None


def test_sessions_are_their_users(served: Serving, alice: Peer, broker: Mosquitto) -> None:
    alice.ask("1", "mine", session_id="s")
    served.accepted(1)
    finish(served, alice, "1")
    with peer(broker.port, user="bob", client="tablet") as bob:
        bob.ask("1", "yours", session_id="s")
        served.accepted(2)
        assert [m.content for m in served.engine.submissions[1].messages] == ["yours"]


def test_a_session_takes_one_turn_at_a_time(served: Serving, alice: Peer) -> None:
    alice.ask("1", "first", session_id="s")
    served.accepted(1)
    alice.ask("2", "second", session_id="s")
    error = alice.end("2")
    assert error["error"]["code"] == 409
    assert error["error"]["retryable"]
    assert error["retry_after_ms"] > 0
    assert error["attempt"] is None
    finish(served, alice, "1")
    alice.ask("2", "second", session_id="s")
    served.accepted(2)


def test_another_system_message_is_refused(served: Serving, alice: Peer) -> None:
    both = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    alice.ask("1", session_id="s", messages=both)
    served.accepted(1)
    finish(served, alice, "1")
    both[0]["content"] = "be long"
    alice.ask("2", session_id="s", messages=both)
    assert alice.end("2")["error"]["code"] == 400
