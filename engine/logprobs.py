"""Log-probabilities of output tokens: as ids from the runner, with text for an owner."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """How likely the model found the token that was chosen, and which it found likeliest.

    Natural logarithms under the model's own distribution: log_softmax of its logits before bias,
    penalties, min_tokens, temperature and filters change them (vLLM's `raw_logprobs`).

    Attributes:
        rank: one more than the number of likelier tokens; equals share a rank.
        top: (token id, log-probability) of the likeliest tokens, likeliest first, equals by id; as
            many as were asked for, without those that the model rules out.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Candidate(NamedTuple):
    """A token at one place of the output.

    Attributes:
        utf8: bytes that the token stands for: part of a character where a character takes several
            tokens, the name of a special token, nothing for an id that pads the embedding.
    """

    token_id: int
    utf8: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The bytes as text, U+FFFD for parts of characters."""
        return self.utf8.decode(errors="replace")


class OutputToken(NamedTuple):
    """`TokenLogprobs` with the tokens' text."""

    chosen: Candidate
    rank: int
    top: tuple[Candidate, ...]
