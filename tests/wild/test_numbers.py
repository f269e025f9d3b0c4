"""Numbers as clients send them: -1 where nothing is meant, and `5.0` of those without integers."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from engine.api.sampling import SamplingParams
from tests.support.chat_requests import parse
from tests.support.http_serving import HttpServing


class Case(NamedTuple):
    report: str
    stated: dict[str, Any]
    read: dict[str, Any]  # what the engine is told


NONE = {
    "no limit": Case("eternalai-org/eternal-zoo#14", {"max_tokens": -1}, {}),
    "no seed": Case("", {"seed": -1}, {}),
    "all tokens": Case("", {"top_k": -1}, {"top_k": 0}),
    "all of it as floats": Case(
        "", {"max_tokens": -1.0, "seed": -1.0, "top_k": -1.0}, {"top_k": 0}
    ),
}
WHOLE = {
    name: Case("", {name: value}, {name: int(value)})
    for name, value in {"max_tokens": 9.0, "seed": 7.0, "top_k": 40.0, "min_tokens": 2.0}.items()
}
CASES = NONE | WHOLE


def asked(serving: HttpServing, path: str, **body: Any) -> list[dict[str, Any]]:
    """The parameters of each reply, as the engine got them."""
    serving.engine.submissions.clear()
    hello = [{"role": "user", "content": "hello"}]
    first = {"/v1/completions": {"prompt": "hello"}, "/v1/responses": {"input": "hello"}}
    with serving.running():
        answer = serving.http.post(path, json=first.get(path, {"messages": hello}) | body)
    assert answer.status_code == 200, answer.text
    return [dict(one.sampling) for one in serving.engine.submissions]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_of_completions(serving: HttpServing, path: str, case: str) -> None:
    (told,) = asked(serving, path, **CASES[case].stated)
    assert told == CASES[case].read
    assert all(type(value) is int for value in told.values())


@pytest.mark.parametrize("case", CASES)
def test_of_mqtt_and_of_settings(case: str) -> None:
    _, stated, read = CASES[case]
    assert parse(**stated).sampling() == read
    assert SamplingParams().override(stated) == SamplingParams(**read)


@pytest.mark.parametrize(
    ("path", "stated", "read"),
    [
        ("/v1/chat/completions", {"max_completion_tokens": 9.0}, {"max_tokens": 9}),
        ("/v1/chat/completions", {"max_completion_tokens": -1}, {}),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2.0}, {"logprobs": 2}),
        ("/v1/chat/completions", {"prompt_logprobs": 2.0}, {"prompt_logprobs": 2}),
        ("/v1/chat/completions", {"priority": 0.0}, {}),
        ("/v1/completions", {"logprobs": 2.0, "echo": None}, {"logprobs": 2}),
        ("/v1/completions", {"best_of": 1.0}, {}),
        ("/v1/responses", {"max_output_tokens": 9.0}, {"max_tokens": 9}),
        ("/v1/responses", {"max_output_tokens": -1}, {}),
        ("/v1/messages", {"max_tokens": 9.0, "top_k": 4.0}, {"max_tokens": 9, "top_k": 4}),
    ],
)
def test_under_other_names(
    serving: HttpServing, path: str, stated: dict[str, Any], read: dict[str, Any]
) -> None:
    (told,) = asked(serving, path, **stated)
    assert told == read


def test_several_replies_without_a_seed_have_none(serving: HttpServing) -> None:
    """Each draws its own; the second one is not that of seed 0."""
    assert asked(serving, "/v1/chat/completions", n=2.0, seed=-1) == [{}, {}]


@pytest.mark.parametrize(
    ("stated", "param"),
    [
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": 1e300}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"seed": -2}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"n": -1}, "n"),
        ({"top_k": -2.0}, "top_k"),
    ],
)
def test_what_is_no_such_number_is_refused(
    serving: HttpServing, stated: dict[str, Any], param: str
) -> None:
    answer = serving.ask(**stated)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(answer.json()["error"]["message"]) < 200
