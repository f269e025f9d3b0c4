"""What can be served at all: refused at submit, or the head of the queue would block for ever."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import InvalidRequestError
from engine.request import SamplingParams


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
