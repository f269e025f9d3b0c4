"""TokenOutput: the tokens that a step produced for one request, still as ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import PromptLogprobs, TokenLogprobs
from engine.api.stream import Usage


@dataclass(frozen=True, slots=True)
class End:
    """The end of a request, and all of its token ids.

    Attributes:
        token_ids: prompt and output, which together are the context of the next turn.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: Sequence[int]
    error: ErrorInfo | None = None


class TokenOutput(NamedTuple):
    """New token ids of one request, and its end if they are its last.

    It is a tuple, like `engine.batch.plan.Row`, because every step makes one for each sequence.

    Attributes:
        logprobs: one for each of `token_ids`; empty if the request asks for none.
        prompt: log-probabilities of prompt tokens, behind those already sent; None if the step
            found none.
    """

    request_id: str
    token_ids: tuple[int, ...]
    end: End | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string ended in the text of output token number `num_output_tokens` (from 1)."""

    request_id: str
    num_output_tokens: int
