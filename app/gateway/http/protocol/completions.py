"""CompletionRequest: a request to /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from app.gateway.http.protocol.generating import MAX_CHOICES, Generating, refuse
from app.gateway.stated import (
    MAX_PROMPT_TOKENS,
    Logprobs,
    LongText,
    MaxTokens,
    TokenId,
    range_of,
    sampled,
    sampling_allowed,
)
from engine.api.sampling_spec import Interface

_TokenIds = Annotated[
    tuple[TokenId, ...], Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True)
]
_Texts = Annotated[
    tuple[LongText, ...], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]
_SeveralIds = Annotated[
    tuple[_TokenIds, ...], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]


@sampled("text")
class CompletionRequest(Generating):
    """A request for text that continues a prompt without a chat template.

    Attributes:
        prompt: text or token ids; or several of either, each of which gets `n` replies.
        echo: whether the prompt precedes its replies, and its tokens precede theirs.
        logprobs: how many of the likeliest tokens come with each token.
        best_of, suffix: refused, unless they change nothing.
    """

    interface: ClassVar[Interface] = "text"
    ALLOWED: ClassVar[dict[str, str]] = {
        **Generating.ALLOWED,
        **sampling_allowed("text"),
        "prompt": f"text, a list of token ids, or a list of 1 to {MAX_CHOICES} of either",
        "echo": "true or false",
        "max_tokens": f"{range_of('max_tokens')}, or 0 where the prompt is echoed",
        "best_of": "an integer",
        "suffix": "text",
    }

    prompt: LongText | _TokenIds | _Texts | _SeveralIds
    echo: bool | None = None
    logprobs: Logprobs | None = None
    best_of: MaxTokens | None = None
    suffix: LongText | None = None

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Each prompt in the engine's form."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return (self.prompt,)
        return self.prompt

    def more_sampling(self) -> dict[str, Any]:
        """
        Raises:
            InvalidRequestError: a field has a value that is not served.
        """
        if self.best_of not in (None, self.choices):
            raise refuse("best_of", self.best_of, f"n, {self.choices}, or left out")
        if self.suffix:
            raise refuse("suffix", self.suffix, "empty or left out")
        is_text = all(isinstance(prompt, str) for prompt in self.prompts())
        if self.echo and self.logprobs is None and not is_text:
            raise refuse("echo", True, "false where the prompt is token ids, but with logprobs")
        if self.choices * len(self.prompts()) > MAX_CHOICES:
            text = f"a number that makes at most {MAX_CHOICES} replies of {len(self.prompts())} "
            raise refuse("n", self.choices, text + "prompts")
        asked = [one for one in (self.prompt_logprobs, self._echoed) if one is not None]
        return {"prompt_logprobs": max(asked, default=None)}

    @property
    def _echoed(self) -> int | None:
        """How many of the likeliest tokens `echo` includes at each prompt position."""
        if not self.echo:
            return None
        # A prompt without a reply ends a request only if its log-probabilities are requested.
        return 0 if self.logprobs is None and self.max_tokens == 0 else self.logprobs
