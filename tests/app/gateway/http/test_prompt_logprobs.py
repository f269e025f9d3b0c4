"""Log-probabilities of prompts, as OpenAI's client and evaluations ask for them, from the built-in
model and as transformers computes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import httpx2
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.builtin import MODEL_DIR
from tests.support.driving import TIMEOUT

TEXT = "The capital of France is Paris. 🙂 naïve"
NEAR = 1e-3  # in float32, whose sums are rounded in another order than torch's


@pytest.fixture(scope="module")
def client(builtin_url: str) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{builtin_url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT
    )


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


@cache
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32).eval()


@torch.inference_mode()
def by_transformers(ids: Sequence[int]) -> torch.Tensor:
    """[ids, vocab], log-probabilities behind each token."""
    logits: torch.Tensor = model()(torch.tensor([ids])).logits[0]
    return logits.log_softmax(-1)


def post(url: str, path: str, **fields: Any) -> Any:
    answer = httpx2.post(f"{url}{path}", json=fields, timeout=TIMEOUT, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer


def test_openais_client_gets_those_of_a_prompt_alone(client: openai.OpenAI) -> None:
    got = client.completions.create(
        model="builtin", prompt=TEXT, echo=True, logprobs=1, max_tokens=0
    )
    (choice,) = got.choices
    ids = tokenizer().encode(TEXT)
    expected = by_transformers(ids)
    assert (choice.text, choice.finish_reason) == (TEXT, "length")
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.token_logprobs) == len(ids)
    # Nothing comes before the first one.
    assert logprobs.token_logprobs[0] is logprobs.top_logprobs[0] is None
    for place in range(1, len(ids)):
        row = expected[place - 1]
        assert logprobs.token_logprobs[place] == pytest.approx(float(row[ids[place]]), abs=NEAR)
        (best,) = logprobs.top_logprobs[place].values()
        assert best == pytest.approx(float(row.max()), abs=NEAR)
        assert best >= logprobs.token_logprobs[place]
    words = [tokenizer().decode(ids[:place]) for place in range(len(ids))]
    assert logprobs.text_offset == [len(text.rstrip("\ufffd")) for text in words]
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(ids), 0)


def test_the_tokens_of_the_reply_follow(client: openai.OpenAI) -> None:
    ids = tokenizer().encode(TEXT)
    got = client.completions.create(
        model="builtin", prompt=[ids, ids[:3]], echo=True, logprobs=2, max_tokens=3, n=2, seed=5
    )
    assert len(got.choices) == 4
    for choice, prompt in zip(got.choices, (ids, ids, ids[:3], ids[:3]), strict=True):
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert logprobs.text_offset is not None
        assert len(logprobs.tokens) == len(logprobs.text_offset) == len(prompt) + 3
        text = tokenizer().decode(prompt)
        assert choice.text.startswith(text)
        assert logprobs.text_offset[len(prompt)] == len(text)
        assert "".join(logprobs.tokens[len(prompt) :]) == choice.text[len(text) :]
    first, second = (choice.logprobs for choice in got.choices[:2])
    assert first is not None
    assert second is not None
    assert first.token_logprobs is not None
    assert second.token_logprobs is not None
    assert first.token_logprobs[: len(ids)] == second.token_logprobs[: len(ids)]


def test_a_stream_has_the_same(builtin_url: str) -> None:
    asked = {
        "prompt": [TEXT, "And"],
        "echo": True,
        "logprobs": 1,
        "max_tokens": 4,
        "n": 2,
        "temperature": 0,
    }
    whole = post(builtin_url, "/v1/completions", **asked).json()["choices"]
    stream = post(builtin_url, "/v1/completions", **asked, stream=True).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    for choice in whole:
        pieces = [
            one["choices"][0] for one in events if one["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(one["text"] for one in pieces) == choice["text"]
        for name, values in choice["logprobs"].items():
            parts = [one["logprobs"][name] for one in pieces if one["logprobs"]]
            joined = [value for part in parts for value in part]
            if name in ("token_logprobs", "top_logprobs"):
                assert [value is None for value in joined] == [value is None for value in values]
            else:
                assert joined == values


def test_vllms_form_has_them_by_token_id(builtin_url: str) -> None:
    ids = tokenizer().encode(TEXT)
    expected = by_transformers(ids)
    got = post(
        builtin_url, "/v1/completions", prompt=ids, prompt_logprobs=2, max_tokens=1, n=2
    ).json()
    chat = post(
        builtin_url,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Hello!"}],
        prompt_logprobs=0,
        max_tokens=1,
    ).json()
    for choice in got["choices"]:
        first, *entries = choice["prompt_logprobs"]
        assert first is None
        assert len(entries) == len(ids) - 1
        for place, (token, found) in enumerate(zip(ids[1:], entries, strict=True)):
            assert 2 <= len(found) <= 3
            own = found[str(token)]
            assert own["decoded_token"] == tokenizer().decode([token])
            assert own["logprob"] == pytest.approx(float(expected[place, token]), abs=NEAR)
            others = [one["rank"] for name, one in found.items() if name != str(token)]
            assert own["rank"] in (1, 2) or others == [1, 2]
    first, *entries = chat["prompt_logprobs"]
    assert first is None
    assert len(entries) == chat["usage"]["prompt_tokens"] - 1
    assert all(len(found) == 1 for found in entries)
    assert "prompt_logprobs" not in chat["choices"][0]


def test_an_echo_alone_needs_no_reply(client: openai.OpenAI) -> None:
    got = client.completions.create(model="builtin", prompt=TEXT, echo=True, max_tokens=0)
    (choice,) = got.choices
    assert (choice.text, choice.logprobs, choice.finish_reason) == (TEXT, None, "length")
