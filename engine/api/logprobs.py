"""Log-probabilities of output tokens: by id as the runner gives them, with text for an owner."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """How likely the model found the token that was chosen, and which it found likeliest.

    They are natural logarithms under the model's own distribution: the log_softmax of its logits
    before bias, penalties, min_tokens, temperature and filters change them (vLLM's `raw_logprobs`).

    Attributes:
        rank: one more than the number of likelier tokens; equals share a rank.
        top: (token id, log-probability) of the likeliest tokens, likeliest first, equals by id.
            There are as many as were asked for, less those that the model rules out.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Candidate(NamedTuple):
    """A token at one place of the output.

    Attributes:
        utf8: bytes that the token stands for. They are part of a character where a character takes
            several tokens, the name of a special token, or empty for an id that pads the embedding.
    """

    token_id: int
    utf8: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The bytes as text, with U+FFFD for parts of characters."""
        return self.utf8.decode(errors="replace")


class OutputToken(NamedTuple):
    """`TokenLogprobs` with the tokens' text."""

    chosen: Candidate
    rank: int
    top: tuple[Candidate, ...]
