"""Log-probabilities of tokens: by id from the runner, with text for an owner."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_RULED_OUT = float("-inf")


class TokenLogprobs(NamedTuple):
    """The log-probability of a sampled or given token, and of the likeliest ones at its position.

    They are natural logarithms under the model's own distribution: the log_softmax of its logits
    before bias, penalties, min_tokens, temperature and filters change them (vLLM's `raw_logprobs`).

    Attributes:
        rank: one more than the number of likelier tokens; equals share a rank.
        top: (token id, log-probability) of the likeliest tokens, likeliest first, equals by id.
            There are as many as requested, less those that the model rules out.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """`TokenLogprobs` of consecutive tokens of a prompt, packed.

    A step produces them for a chunk, and as objects they would take its thread a millisecond for a
    thousand tokens.

    Attributes:
        first: position of the first token in the prompt, from 1, because nothing precedes token 0.
        token_ids, logprobs, ranks: for each token.
        number: how many likeliest tokens each has.
        top_ids, top: `number` for each token, likeliest first; -inf marks one that the model rules
            out.
        is_finite: whether the logits were finite; if not, nothing here has a meaning.
    """

    first: int
    token_ids: array[int]
    logprobs: array[float]
    ranks: array[int]
    number: int
    top_ids: array[int]
    top: array[float]
    is_finite: bool = True

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.first + len(self.token_ids)

    def behind(self, place: int) -> PromptLogprobs:
        """The part from a position of the prompt on."""
        skip = min(max(place - self.first, 0), len(self.token_ids))
        if not skip:
            return self
        tops = skip * self.number
        return PromptLogprobs(
            self.first + skip,
            self.token_ids[skip:],
            self.logprobs[skip:],
            self.ranks[skip:],
            self.number,
            self.top_ids[tops:],
            self.top[tops:],
            self.is_finite,
        )

    def __iter__(self) -> Iterator[tuple[int, TokenLogprobs]]:
        """Yield each token id with its `TokenLogprobs`."""
        number = self.number
        for i, token_id in enumerate(self.token_ids):
            part = slice(i * number, (i + 1) * number)
            pairs = zip(self.top_ids[part], self.top[part], strict=True)
            top = tuple([pair for pair in pairs if pair[1] > _RULED_OUT])
            yield token_id, TokenLogprobs(self.logprobs[i], self.ranks[i], top)


class Candidate(NamedTuple):
    """A token at one position of the output or the prompt.

    Attributes:
        utf8: bytes of the token: part of a character if the character takes several tokens, the
            name of a special token, or empty for an id that pads the embedding.
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


class PromptToken(NamedTuple):
    """A token of a prompt with its text.

    Attributes:
        utf8: as `Candidate.utf8`.
        logprob, rank, top: as in `OutputToken`; None and empty for the first token, which nothing
            precedes.
    """

    token_id: int
    utf8: bytes
    logprob: float | None = None
    rank: int | None = None
    top: tuple[Candidate, ...] = ()
