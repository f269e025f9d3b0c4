"""Logprobs: log-probabilities as plain data in the forms of OpenAI's and vLLM's interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.api.errors import InvalidRequestError
from engine.api.logprobs import OutputToken, PromptToken


def stated_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """How many of the likeliest tokens a request for a chat wants with each token; None if it wants
    no log-probabilities.

    Raises:
        InvalidRequestError: the two fields contradict each other.
    """
    if logprobs:
        return top_logprobs or 0
    if top_logprobs is not None:
        shown = "null" if logprobs is None else "false"
        text = f"logprobs is {shown}; it must be true where top_logprobs is stated"
        raise InvalidRequestError(text, "logprobs")
    return None


def token_bytes(token: OutputToken) -> dict[str, Any]:
    """A token and its alternatives in OpenAI's form."""
    chosen = token.chosen
    return {
        "token": chosen.text,
        "logprob": finite(chosen.logprob),
        "bytes": list(chosen.utf8),
        "top_logprobs": [
            {"token": one.text, "logprob": finite(one.logprob), "bytes": list(one.utf8)}
            for one in token.top
        ],
    }


def prompt_logprobs(prompt: Sequence[PromptToken], number: int) -> Iterator[object]:
    """Tokens of a prompt in vLLM's form: null for the first one, and for each other the token and
    so many of the likeliest, by their ids.
    """
    for token in prompt:
        if token.logprob is None:
            yield None
            continue
        found = {
            str(one.token_id): _place(one.text, one.logprob, rank)
            for rank, one in enumerate(token.top[:number], 1)
        }
        text = token.utf8.decode(errors="replace")
        yield found | {str(token.token_id): _place(text, token.logprob, token.rank)}


def _place(text: str, logprob: float, rank: int | None) -> dict[str, Any]:
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold: vLLM's -9999 for a token that the model rules out."""
    return max(logprob, -9999.0)
