"""Generating: the common fields of all requests for text."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from app.gateway.http.protocol.payload import Payload
from app.gateway.http.protocol.structured import STRUCTURED_ALLOWED, Structured
from app.gateway.stated import (
    Logprobs,
    LongText,
    MaxTokens,
    Model,
    Whole,
    check_sampling,
    sampled,
    sampling_allowed,
    stated_sampling,
)
from engine.api.errors import InvalidRequestError
from engine.api.sampling_spec import Interface
from engine.core.admission import MAX_CACHE_SALT, MAX_PRIORITY

MAX_CHOICES = 128


class StreamOptions(Payload):
    """Options of a stream.

    Attributes:
        include_usage: whether a last chunk has the token counts.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


@sampled("chat", "text")
class Generating(Structured):
    """A request for text. None is the model's default.

    Attributes:
        interface: which of the two completions it is.
        n: the number of replies to one prompt. With a seed, the first one has it, and the others
            the numbers that follow.
        user: the client's end user; it is shown, and counts toward no quota.
        priority: as in vLLM: a request with a smaller number goes first.
        cache_salt: as in vLLM: only requests with the same salt find its prefix in the cache.
        prompt_logprobs: as in vLLM: how many of the likeliest tokens are returned at each prompt
            position, besides the actual one.

    The other fields are those of `engine.api.sampling.SamplingParams`.
    """

    interface: ClassVar[Interface]
    ALLOWED: ClassVar[dict[str, str]] = {
        **STRUCTURED_ALLOWED,
        "model": "text, the name of the model",
        "n": f"an integer from 1 to {MAX_CHOICES}",
        **sampling_allowed("chat", "text"),
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
    max_tokens: MaxTokens | None = None
    prompt_logprobs: Logprobs | None = None
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
        stated = stated_sampling(self, self.interface) | self.more_sampling()
        wanted = self.form
        stated["structure"] = None if wanted is None else wanted.structure
        given = {name: value for name, value in stated.items() if value is not None}
        check_sampling(given, self.interface)
        return given

    def more_sampling(self) -> dict[str, Any]:
        """Sampling parameters that follow from several fields, by the engine's names."""
        return {}

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


def refuse(name: str, value: object, allowed: str) -> InvalidRequestError:
    """The error for a value that is not served."""
    return InvalidRequestError(f"{name} is {value!r}; it must be {allowed}", name)
