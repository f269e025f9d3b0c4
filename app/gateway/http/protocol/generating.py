"""Generating: the common fields of all requests for text."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from app.gateway.http.protocol.structured import STRUCTURED_ALLOWED, Structured
from app.gateway.http.protocol.told import Told
from app.gateway.stated import (
    Bias,
    FrequencyPenalty,
    LongText,
    MaxTokens,
    MinP,
    MinTokens,
    Model,
    Name,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TokenId,
    TopK,
    TopP,
    Whole,
)
from engine.api.errors import InvalidRequestError
from engine.api.sampling import (
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_BYTES,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    RANGES,
    SamplingParams,
)
from engine.core.admission import MAX_CACHE_SALT, MAX_PRIORITY

MAX_CHOICES = 128

Stops = Annotated[tuple[Stop, ...], Field(max_length=MAX_STOPS, fail_fast=True)]
StopTokens = Annotated[tuple[TokenId, ...], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)]

Biases = Annotated[dict[Name, Bias], Field(json_schema_extra={"maxProperties": MAX_BIASES})]

_MOST_TOKENS = int(RANGES["max_tokens"][1])
MOST_ALLOWED = f"an integer from 1 to {_MOST_TOKENS}"

# Sampling parameters that have the engine's names.
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "ignore_eos", "min_tokens", "stop_token_ids"),
    "prompt_logprobs",
)


class StreamOptions(Told):
    """Options of a stream.

    Attributes:
        include_usage: whether a last chunk has the token counts.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generating(Structured):
    """A request for text. None is the model's default.

    Attributes:
        n: the number of replies to one prompt.
        stop: strings that end a reply.
        seed: of the first reply; the others use the numbers that follow it.
        user: the client's end user; it is shown, and counts toward no quota.
        priority: as in vLLM: a request with a smaller number goes first.
        cache_salt: as in vLLM: only requests with the same salt find its prefix in the cache.
        prompt_logprobs: as in vLLM: how many of the likeliest tokens are returned at each prompt
            position, besides the actual one.
        logit_bias, stop_token_ids, top_k, min_p, repetition_penalty, ignore_eos, min_tokens: as in
            `engine.api.sampling.SamplingParams`.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        **STRUCTURED_ALLOWED,
        "model": "text, the name of the model",
        "n": f"an integer from 1 to {MAX_CHOICES}",
        "temperature": "a number",
        "top_p": "a number",
        "top_k": "an integer",
        "min_p": "a number",
        "repetition_penalty": "a number",
        "presence_penalty": "a number",
        "frequency_penalty": "a number",
        "logit_bias": "a map of token ids to numbers from -100 to 100",
        "stop": f"text or a list of at most {MAX_STOPS} texts, none of them empty, "
        f"{MAX_STOP_BYTES >> 10} KiB in all",
        "stop_token_ids": f"a list of at most {MAX_STOP_TOKENS} token ids",
        "seed": "an integer",
        "max_tokens": "an integer of at least 1",
        "min_tokens": "an integer of at least 0",
        "ignore_eos": "true or false",
        "prompt_logprobs": f"an integer from 0 to {MAX_LOGPROBS}",
        "stream": "true or false",
        "stream_options": "an object with include_usage",
        "stream_options.include_usage": "true or false",
        "stream_options.continuous_usage_stats": "true or false",
        "priority": f"an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}",
        "cache_salt": f"text of 1 to {MAX_CACHE_SALT} characters",
        "user": "text",
    }

    model: Model | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), Whole] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    logit_bias: Biases | None = None
    stop: Stop | Stops | None = None
    stop_token_ids: StopTokens | None = None
    seed: Seed | None = None
    max_tokens: MaxTokens | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), Whole] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), Whole] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    user: LongText | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> dict[str, Any]:
        """The stated sampling parameters, by the engine's names.

        Raises:
            InvalidRequestError: one is outside its range.
        """
        if self.stream and self.prompt_logprobs is not None:
            raise refuse("prompt_logprobs", self.prompt_logprobs, "left out where stream is true")
        stated = {name: getattr(self, name) for name in _SAME} | self.more_sampling()
        stated["stop"] = (self.stop,) if isinstance(self.stop, str) else self.stop
        stated["seed"] = self.seed
        wanted = self.form
        stated["structure"] = None if wanted is None else wanted.structure
        given = {name: value for name, value in stated.items() if value is not None}
        SamplingParams().override(given)
        return given

    def more_sampling(self) -> dict[str, Any]:
        """Further stated sampling parameters, by the engine's names."""
        return {"max_tokens": self.max_tokens}

    def of_choice(self, sampling: dict[str, Any], choice: int) -> dict[str, Any]:
        """The sampling parameters of one of the replies to a prompt. Only the first one gets the
        prompt's log-probabilities, for all of them.
        """
        if choice == 0:
            return sampling
        own = dict(sampling)
        if (seed := own.get("seed")) is not None:
            own["seed"] = (seed + choice) % 2**64
        if own.get("max_tokens") != 0:  # 0 is only allowed with them
            own.pop("prompt_logprobs", None)
        return own


def checked_most(name: str, most: int | None) -> int | None:
    """Check a limit of reply tokens whose name is not the engine's.

    Raises:
        InvalidRequestError: the number is out of range.
    """
    if most is not None and not 1 <= most <= _MOST_TOKENS:
        raise refuse(name, most, MOST_ALLOWED)
    return most


def refuse(name: str, value: object, allowed: str) -> InvalidRequestError:
    """The error for a value that is not served."""
    return InvalidRequestError(f"{name} is {value!r}; it must be {allowed}", name)
