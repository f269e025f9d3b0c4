"""What can be served at all: refused at submit, or the head of the queue would block for ever."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import EngineConfig
from engine.errors import InvalidRequestError
from engine.request import SamplingParams

MAX_DEADLINE = 365 * 24 * 3600
MAX_PRIORITY = 1_000_000


def check_priority(priority: int) -> None:
    """Check what decides a request's place in the queue.

    Raises:
        InvalidRequestError: no integer within bounds.
    """
    integer = isinstance(priority, int) and not isinstance(priority, bool)
    if not integer or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority is {priority!r}; it must be an integer from {-MAX_PRIORITY} to "
            f"{MAX_PRIORITY}",
            "priority",
        )


def check_deadline(deadline: float | None) -> None:
    """Check by when a request must have left the queue, in seconds after its arrival.

    Raises:
        InvalidRequestError: no time to come, or one too far off.
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

    A tokenizer may know more tokens than its model. Looking one up is an error that ends the step
    on a CPU and the whole device on a GPU.

    Raises:
        InvalidRequestError: an id that the model has no row for.
    """
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} has token id {token_id}; the model's are 0 to {vocab_size - 1}", param
            )


def max_output_tokens(
    config: EngineConfig, num_prompt_tokens: int, sampling: SamplingParams
) -> int:
    """Most output tokens of a request: what it asks for, else all that fits.

    Raises:
        InvalidRequestError: prompt and output do not fit in the model length or the whole pool.
    """
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt is empty; at least 1 token is needed", "prompt")
    limit = min(config.max_model_len, config.num_slots)
    bounds = f"context {config.max_model_len}, pool {config.num_slots} tokens"
    room = limit - num_prompt_tokens
    if room < 1:
        raise InvalidRequestError(
            f"the prompt has {num_prompt_tokens} tokens; at most {limit - 1} are allowed, "
            f"leaving 1 for the answer ({bounds})",
            "prompt",
        )
    for name, value in (("max_tokens", sampling.max_tokens), ("min_tokens", sampling.min_tokens)):
        if value is not None and value > room:
            raise InvalidRequestError(
                f"{name} is {value}; with a prompt of {num_prompt_tokens} tokens at most {room} "
                f"are allowed ({bounds})",
                name,
            )
    return room if sampling.max_tokens is None else sampling.max_tokens
