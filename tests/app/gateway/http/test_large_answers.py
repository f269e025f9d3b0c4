"""Large answers: what many log-probabilities take is bounded, and made in parts beside the loop."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway import logprobs
from app.gateway.http import chat_completions, generation, replies
from app.gateway.http.replies import compact, parts, pieces
from engine.api.logprobs import Candidate, OutputToken
from engine.api.stream import Delta, RequestStream
from tests.support.http_serving import HttpServing

HELLO = [{"role": "user", "content": "hello"}]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def lazy(data: object) -> object:
    """The same, with an iterator in place of each list that is a value of a map."""
    if isinstance(data, dict):
        return {
            name: iter(value) if isinstance(value, list) else lazy(value)
            for name, value in data.items()
        }
    return [lazy(entry) for entry in data] if isinstance(data, list) else data


@given(PLAIN)
def test_pieces_are_those_of_the_whole(data: object) -> None:
    assert "".join(pieces(data)) == compact(data)
    assert "".join(pieces(lazy(data))) == compact(data)


def test_a_long_list_is_made_in_pieces() -> None:
    for data in ([*range(5000)], [*range(1500), {"a": [1]}, *range(1500)], ["x"] * 1024, [None]):
        assert "".join(pieces(data)) == compact(data)
    assert len(list(pieces([*range(5000)]))) == 6


def test_a_part_is_no_larger_than_one_entry_more() -> None:
    made = list(parts({"a": iter(["x" * 1000] * 1000)}))
    assert json.loads(b"".join(made)) == {"a": ["x" * 1000] * 1000}
    assert len(made) > 30
    assert max(map(len, made)) < replies.PART_BYTES + 1100


TOKEN = OutputToken(
    Candidate(1, b"a", -1.0), 1, (Candidate(1, b"a", -1.0), Candidate(2, b"b", -2.0))
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are small, and log-probabilities, of which the scripted engine has none."""
    for module in (replies, generation):
        monkeypatch.setattr(module, "PART_BYTES", 200)
    drain = RequestStream.drain

    def telling(stream: RequestStream) -> Delta | None:
        delta = drain(stream)
        return delta and replace(delta, logprobs=(TOKEN,) * delta.num_tokens)

    monkeypatch.setattr(RequestStream, "drain", telling)


def ask(serving: HttpServing, **fields: Any) -> Any:
    with serving.running():
        return serving.http.post(
            "/v1/chat/completions",
            json={"messages": HELLO, "logprobs": True, "top_logprobs": 1, "n": 3, **fields},
        )


@pytest.mark.usefixtures("small")
def test_a_large_answer_is_made_beside_the_loop(
    serving: HttpServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    made = logprobs.token_bytes

    def token_bytes(token: Any) -> dict[str, object]:
        threads.append(threading.current_thread().name)
        return made(token)

    monkeypatch.setattr(chat_completions, "token_bytes", token_bytes)
    answer = ask(serving, seed=1)
    assert answer.status_code == 200
    assert "content-length" not in answer.headers
    entries = [choice["logprobs"]["content"] for choice in answer.json()["choices"]]
    assert len(entries) == 3
    assert sum(map(len, entries)) > 3
    assert sum(map(len, entries)) == answer.json()["usage"]["completion_tokens"]
    # The loop makes the first part alone, as a small answer is as a whole: here, what is before.
    assert all(name.startswith("asyncio_") for name in threads)


@pytest.mark.usefixtures("small")
def test_token_ids_are_told_in_parts(serving: HttpServing) -> None:
    answer = serving.http.post("/tokenize", json={"prompt": "one two " * 500})
    assert "content-length" not in answer.headers
    assert answer.json()["count"] == len(answer.json()["tokens"]) == 1000


def test_a_small_answer_is_sent_at_once(serving: HttpServing) -> None:
    answer = ask(serving, n=1, max_tokens=2)
    assert answer.headers["content-length"] == str(len(answer.content))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_in_parts_tells_the_same(serving: HttpServing, path: str) -> None:
    is_chat = path.startswith("/v1/chat")
    begin: dict[str, Any] = (
        {"messages": HELLO, "logprobs": True, "top_logprobs": 1}
        if is_chat
        else {"prompt": "hello", "echo": True, "logprobs": 1}
    )
    with serving.running():
        whole = serving.http.post(path, json={**begin, "seed": 1}).json()["choices"][0]
        stream = serving.http.post(path, json={**begin, "seed": 1, "stream": True})
    chunks = [json.loads(line[6:]) for line in stream.text.splitlines() if line[:7] == "data: {"]
    found = [one["choices"][0]["logprobs"] for one in chunks if one["choices"]]
    kind = "content" if is_chat else "tokens"
    entries = [entry for one in found if one for entry in one[kind]]
    assert entries == whole["logprobs"][kind]
    assert len(entries) > 1


@pytest.mark.parametrize(
    ("path", "fields", "param", "count"),
    [
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 20, "n": 128}, "logprobs", 0),
        (
            "/v1/chat/completions",
            {"logprobs": True, "top_logprobs": 20, "n": 128, "max_tokens": 391},
            "logprobs",
            128 * 391 * 21,
        ),
        (
            "/v1/completions",
            {"prompt": ["a", "b"], "n": 64, "logprobs": 20, "max_tokens": 391},
            "logprobs",
            128 * 391 * 21,
        ),
        (
            "/v1/completions",
            {"prompt": ["x" * 1000] * 128, "prompt_logprobs": 20, "max_tokens": 1},
            "prompt_logprobs",
            128 * 1001 * 21,
        ),
    ],
)
def test_many_alternatives_are_refused(
    serving: HttpServing, path: str, fields: dict[str, Any], param: str, count: int
) -> None:
    asked = {"messages": HELLO, **fields} if "chat" in path else fields
    answer = serving.http.post(path, json=asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert "at most 1048576 are allowed" in error["message"]
    assert f"up to {count or 128 * 1024 * 21} log-probabilities" in error["message"]
    assert serving.engine.submissions == []


def test_what_is_within_the_bound_is_answered(serving: HttpServing) -> None:
    assert ask(serving, n=128, top_logprobs=20, max_tokens=2).status_code == 200
    assert ask(serving, n=1, top_logprobs=20).status_code == 200
