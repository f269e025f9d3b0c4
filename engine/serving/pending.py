"""Pending: a submission on its way to the engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine.api.client import Submission
from engine.api.errors import EngineError, ErrorInfo, InvalidRequestError, cause_of
from engine.api.lifecycle import FinishReason
from engine.api.stream import RequestStream
from engine.batch.refusal import tell_refusal
from engine.structure.grammar import Grammar
from engine.text.encodings import Encoding

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Pending:
    """A submission that waits for a model, or to be encoded.

    Attributes:
        arrival: monotonic seconds.
        begun: how many of its token ids, at their end, are those of a reply to go on with.
        grammar: what its reply is to follow, once its prompt is encoded; None if that is free.
        encoding: its place in the turns to be encoded; None until there is a model for it.
    """

    submission: Submission
    stream: RequestStream
    arrival: float
    begun: int = 0
    grammar: Grammar | None = None
    encoding: Encoding | None = None

    def refuse(self, error: BaseException) -> None:
        """End it with an error. An error that is not ours comes from the model's own code."""
        if not isinstance(error, EngineError):
            log.error("request %s could not be read", self.submission.request_id, exc_info=error)
            error = InvalidRequestError(
                f"the prompt could not be read: {cause_of(error)}", "prompt"
            )
        if isinstance(error, InvalidRequestError):
            tell_refusal(self.submission, error)
        self.end(FinishReason.ERROR, error.info())

    def end(self, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        """End it unserved."""
        if self.encoding is not None:
            self.encoding.is_wanted = False
        try:
            self.stream.end_unserved(reason, error)
        except BaseException:
            log.exception("the wake call of a stream's reader failed")
