"""Pending: a submission on its way to the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.api.client import Submission
from engine.api.errors import EngineError, ErrorInfo, InvalidRequestError, cause_of
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.stream import RequestStream
from engine.batch.refusal import log_refusal
from engine.serving.loading import LoadedModel
from engine.structure.grammar import Grammar
from engine.text.encodings import Encoding

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as prepared for the engine.

    Attributes:
        token_ids: token ids of the prompt.
        num_partial: how many of them, at the end, belong to a reply to continue.
        grammar: the grammar of the reply; None if there is none.
        key: identifies contexts that begin with the prompt (`engine.text.arguments.context_key`).
    """

    token_ids: list[int]
    num_partial: int
    grammar: Grammar | None
    key: str


# Parameters that the replies to one request do not share.
OWN = frozenset(("seed", "prompt_logprobs"))


def are_siblings(first: Submission, other: Submission) -> bool:
    """Whether a fork differs from its source at most in `OWN`."""
    stated, others = first.sampling, other.sampling
    return (
        first.messages is other.messages
        and first.prompt is other.prompt
        and first.context is other.context
        and first.num_partial == other.num_partial
        and first.chat_defaults == other.chat_defaults
        and all(stated.get(name) is others.get(name) for name in {*stated, *others} - OWN)
    )


class Common:
    """The state shared by the replies to one request. The prompt is checked once, and encoded once,
    by the first reply whose turn comes. A user's turns are sequential, so that no two encode it at
    once.

    Args:
        submission: submission of the first reply.
        size: bytes of text to encode.
    """

    def __init__(
        self, submission: Submission, model: LoadedModel, sampling: SamplingParams, size: int
    ) -> None:
        self.submission = submission
        self.model = model
        self.sampling = sampling
        self.size = size
        self._encoded: Encoded | BaseException | None = None

    def sampling_of(self, other: Submission, defaults: SamplingParams) -> SamplingParams:
        """Make the parameters of another reply.

        Raises:
            InvalidRequestError: see `SamplingParams.of_sibling`.
        """
        own: dict[str, Any] = {
            name: other.sampling.get(name, getattr(defaults, name)) for name in OWN
        }
        return self.sampling.of_sibling(**own)

    def encoded(self, encode: Callable[[], Encoded]) -> Encoded | BaseException:
        """Return the encoded prompt, encoding it if necessary; blocks. An error that `encode`
        raises is stored too: a prompt that takes 10 s to be refused would take as long for each
        reply.
        """
        if self._encoded is None:
            try:
                self._encoded = encode()
            except BaseException as error:  # a panic is not an Exception
                # This frame has `self`, which has the error: a cycle that waits for collection.
                frames = error.__traceback__
                self._encoded = error.with_traceback(frames and frames.tb_next)
        return self._encoded


@dataclass(slots=True, eq=False)
class Pending:
    """A submission that waits for a model, or for its encoding.

    Attributes:
        arrival: monotonic seconds.
        encoding: its entry in the encoding queue; None until there is a model for it.
    """

    submission: Submission
    stream: RequestStream
    arrival: float
    encoding: Encoding | None = None

    def refuse(self, error: BaseException) -> None:
        """Refuse the submission. An unexpected error comes from the model's own code."""
        if not isinstance(error, EngineError):
            log.error("request %s could not be read", self.submission.request_id, exc_info=error)
            error = InvalidRequestError(
                f"the prompt could not be read: {cause_of(error)}", "prompt"
            )
        if isinstance(error, InvalidRequestError):
            log_refusal(self.submission, error)
        self.end(FinishReason.ERROR, error.info())

    def end(self, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        """End the submission without serving it."""
        if self.encoding is not None:
            self.encoding.is_wanted = False
        try:
            self.stream.end_unserved(reason, error)
        except BaseException:
            log.exception("the wake call of a stream's reader failed")
