"""Attempts: a request that is sent again is told again, run again, or a conflict."""

from __future__ import annotations

from tests.support.mqtt_asking import finish
from tests.support.mqtt_peer import Peer
from tests.support.mqtt_serving import Serving


def test_a_running_duplicate_is_accepted_again_and_a_finished_one_told_again(
    served: Serving, alice: Peer
) -> None:
    alice.ask("1", "hello")
    served.accepted(1)
    alice.ask("1", "hello")
    alice.wait(lambda: len(alice.replies("1")) == 2)
    assert [r["type"] for r in alice.replies("1")] == ["accepted", "accepted"]
    final = finish(served, alice, "1")
    alice.ask("1", "hello")
    assert alice.end("1", 2) == final
    assert len(served.engine.submissions) == 1


def test_another_body_under_an_id_is_a_conflict(served: Serving, alice: Peer) -> None:
    alice.ask("1", "hello")
    served.accepted(1)
    alice.ask("1", "good bye")
    assert alice.end("1")["error"]["code"] == 409
    finish(served, alice, "1")
    alice.ask("1", "good bye")
    assert alice.end("1", 3)["error"]["code"] == 409
    assert len(served.engine.submissions) == 1


def test_a_retryable_failure_is_run_again_as_another_attempt(served: Serving, alice: Peer) -> None:
    alice.ask("1", "hello there", session_id="s")
    served.accepted(1)
    served.engine.advance(3)
    served.engine.break_request("default/alice/phone/1", "the step failed")
    error = alice.end("1")
    assert (error["error"]["code"], error["error"]["retryable"], error["attempt"]) == (500, True, 1)

    alice.ask("1", "hello there", session_id="s")
    served.accepted(2)
    alice.wait(lambda: alice.replies("1")[-1]["attempt"] == 2)
    finish(served, alice, "1")
    again = [r for r in alice.replies("1") if r["type"] == "delta" and r["attempt"] == 2]
    assert again[0]["seq"] == 0
    # It is asked once, not after its own failure.
    assert [m.content for m in served.engine.submissions[1].messages] == ["hello there"]


def test_an_invalid_request_is_not_run_again(served: Serving, alice: Peer) -> None:
    alice.ask("1", "word " * 2000)
    error = alice.end("1")["error"]
    assert (error["code"], error["param"], error["retryable"]) == (400, "messages", False)
    alice.ask("1", "word " * 2000)
    assert alice.end("1", 2)["error"] == error
    assert len(served.engine.submissions) == 1
