"""TokenOutput: what the core gives for a request in a step, still as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import ErrorInfo
from engine.logprobs import TokenLogprobs
from engine.request import FinishReason
from engine.stream import Timings, Usage


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended, and its whole truth in token ids.

    Attributes:
        token_ids: prompt and output, all that the next turn's context is.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: tuple[int, ...]
    error: ErrorInfo | None = None


class TokenOutput(NamedTuple):
    """New token ids of one request, and its end if this is it.

    A tuple, since every step makes one for each sequence, as with `engine.plan.Row`.

    Attributes:
        logprobs: one for each of `token_ids`; empty if the request asks for none.
    """

    request_id: str
    token_ids: tuple[int, ...]
    end: End | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string ended in the text of output token number `num_output_tokens` (from 1)."""

    request_id: str
    num_output_tokens: int
