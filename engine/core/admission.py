"""Admission: refuses what can never be served, which would block the queue for ever."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.config import EngineConfig
from engine.api.errors import ContextLengthError, InvalidRequestError
from engine.api.sampling import SamplingParams

MAX_DEADLINE = 365 * 24 * 3600
MAX_PRIORITY = 1_000_000
# Six times vLLM's recommendation of 256 random bits in base64.
MAX_CACHE_SALT = 256


def check_priority(priority: int) -> None:
    """Check the priority of a request.

    Raises:
        InvalidRequestError: it is not an integer, or out of bounds.
    """
    integer = isinstance(priority, int) and not isinstance(priority, bool)
    if not integer or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority is {priority!r}; it must be an integer from {-MAX_PRIORITY} to "
            f"{MAX_PRIORITY}",
            "priority",
        )


def check_deadline(deadline: float | None) -> None:
    """Check the deadline of a request: the seconds after its arrival by which it must leave the
    queue.

    Raises:
        InvalidRequestError: it is not a number above 0, or more than a year.
    """
    if deadline is None:
        return
    number = isinstance(deadline, (int, float)) and not isinstance(deadline, bool)
    if not number or not 0 < deadline <= MAX_DEADLINE:
        raise InvalidRequestError(
            f"deadline is {deadline!r}; it must be a number of seconds above 0 and at most "
            f"{MAX_DEADLINE}",
            "deadline",
        )


def check_vocabulary(token_ids: Sequence[int], vocab_size: int, param: str = "prompt") -> None:
    """Check token ids of a prompt, or of another field, against the rows of the model's embedding.

    A tokenizer may have more tokens than its model. Looking up a token without a row raises on a
    CPU, which fails the step, and makes the whole device unusable on a GPU.

    Raises:
        InvalidRequestError: the model has no row for an id.
    """
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} has token id {token_id}; the model's are 0 to {vocab_size - 1}", param
            )


def max_output_tokens(
    config: EngineConfig, num_prompt_tokens: int, sampling: SamplingParams, *, trims: bool = False
) -> int:
    """Most output tokens of a request: as many as it asks for, else as many as fit.

    Args:
        trims: whether to lower a limit that does not fit, rather than refuse it.

    Raises:
        InvalidRequestError: the prompt is empty, or the output alone does not fit.
        ContextLengthError: prompt and output do not fit in the model length or the whole pool.
    """
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt is empty; at least 1 token is needed", "prompt")
    limit = min(config.max_model_len, config.num_slots)
    # Coding assistants recognise these words, here and below, and shorten the chat. Where no chat
    # is short enough they would retry in vain, so that case raises a different error.
    bounds = f"maximum context length is {config.max_model_len} tokens, pool {config.num_slots}"
    room = limit - num_prompt_tokens
    least = 0 if sampling.max_tokens == 0 else 1
    if room < least:
        leaving = ", leaving 1 for the answer" if least else ""
        raise ContextLengthError(
            f"the prompt is too long: {num_prompt_tokens} tokens > {limit - least} allowed"
            f"{leaving} ({bounds})",
            "prompt",
        )
    most = room if sampling.max_tokens is None else sampling.max_tokens
    if trims:
        most = min(most, room)
    for name, value in (("max_tokens", most), ("min_tokens", sampling.min_tokens)):
        if value <= room:
            continue
        text = f"{name} is {value}; with a prompt of {num_prompt_tokens} tokens at most {room} are"
        if value >= limit:
            raise InvalidRequestError(f"{text} allowed, and with any other {limit - 1}", name)
        raise ContextLengthError(f"{text} allowed ({bounds})", name)
    return most
