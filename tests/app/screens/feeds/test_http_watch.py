from __future__ import annotations

from app.gateway.view import Rejection
from app.screens.feeds.gateway_watch import HttpWatch
from tests.support.scripted_http import ScriptedHttp
from widgets.panels.gateway_readings import HttpState


def test_without_a_gateway_there_is_nothing_to_see() -> None:
    watch = HttpWatch(None)
    watch.poll()
    assert watch.readings is None
    assert not watch.has_stopped()


def test_a_request_that_is_refused_comes_and_goes_too() -> None:
    gateway = ScriptedHttp()
    watch = HttpWatch(gateway)
    watch.poll()
    gateway.show(
        time=102.0, accepted=10, finished=4, rejected=(Rejection(429, "over the quota", 2),)
    )
    watch.poll()
    assert watch.readings is not None
    assert (watch.readings.received, watch.readings.sent) == (6.0, 3.0)
    assert watch.readings.lasted == 62.0


def test_states_are_those_of_the_gateway_and_its_end_is_news_once() -> None:
    gateway, states, told = ScriptedHttp(), [], []
    watch = HttpWatch(gateway)
    for draining, failure in ((False, ""), (True, ""), (True, "OSError"), (True, "OSError")):
        gateway.show(draining=draining)
        gateway.failure = failure
        watch.poll()
        assert watch.readings is not None
        states.append(watch.readings.state)
        told.append(watch.has_stopped())
    assert states == [HttpState.SERVING, HttpState.DRAINING, *[HttpState.STOPPED] * 2]
    assert told == [False, False, True, False]
