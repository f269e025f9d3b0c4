from __future__ import annotations

import pytest

from app.gateway.faults import MAX_MESSAGE, TYPES, Fault
from app.store.journal import RESTARTED
from engine.api.errors import (
    DeadlineError,
    EngineError,
    ErrorInfo,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    UnavailableError,
)

OF = [
    (InvalidRequestError("m"), 400, "invalid_request_error", False),
    (DeadlineError("m"), 408, "deadline_error", False),
    (OverloadedError("m"), 429, "overloaded_error", True),
    (UnavailableError("m"), 503, "unavailable_error", True),
    (EngineError("m"), 500, "engine_error", True),
]


@pytest.mark.parametrize(("error", "code", "type_", "retryable"), OF)
def test_what_the_engine_says_has_a_code(
    error: EngineError, code: int, type_: str, retryable: bool
) -> None:
    fault = Fault.of(error.info())
    assert (fault.code, fault.type, fault.retryable) == (code, type_, retryable)
    assert (fault.message, fault.param) == ("m", None)


def test_why_a_model_could_not_be_loaded_is_for_the_server() -> None:
    fault = Fault.of(ModelError("could not load /srv/models/x: it is damaged").info())
    assert (fault.code, fault.type, fault.retryable) == (503, "unavailable_error", True)
    assert fault.message == "no model is loaded: the server's log says why"


def test_a_restart_may_be_asked_again() -> None:
    fault = Fault.of(RESTARTED)
    assert (fault.code, fault.type, fault.retryable) == (503, "unavailable_error", True)
    assert fault.message == RESTARTED.message


def test_an_unknown_type_is_a_failure_of_ours() -> None:
    fault = Fault.of(ErrorInfo("novel_error", "m"))
    assert (fault.code, fault.type) == (500, "engine_error")


@pytest.mark.parametrize(
    ("param", "told"),
    [("prompt", "messages"), ("deadline", "deadline_ms"), ("top_p", "top_p"), (None, None)],
)
def test_a_field_has_the_name_that_the_request_gives_it(param: str | None, told: str) -> None:
    assert Fault.of(InvalidRequestError("m", param).info()).param == told


def test_it_carries_when_to_ask_again() -> None:
    fault = Fault(429, "full", reason="queue full", retry_after_ms=1500, queue_depth=7)
    assert (fault.reason, fault.retry_after_ms, fault.queue_depth) == ("queue full", 1500, 7)
    assert str(fault) == fault.message == "full"
    plain = Fault(429, "full")
    assert (plain.retry_after_ms, plain.queue_depth) == (None, None)


def test_each_kind_is_counted_under_some_words() -> None:
    reasons = {Fault(code, "m").reason for code in TYPES}
    assert len(reasons) == len(TYPES)
    assert Fault(409, "m").reason == "conflict"


def test_a_long_sentence_keeps_its_beginning_and_its_end() -> None:
    sentence = f"stop is {'x' * 10_000}; it must be shorter"
    message = Fault(400, sentence).message
    assert len(message) <= MAX_MESSAGE
    assert message.startswith("stop is xxx")
    assert message.endswith("xxx; it must be shorter")
    assert "x…x" in message
    short = "y" * MAX_MESSAGE
    assert Fault(400, short).message == short
