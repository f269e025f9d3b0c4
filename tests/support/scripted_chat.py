"""ScriptedChat: a request whose reply is given, until it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.client import Submission
from engine.api.errors import EngineError
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.stream import Context, Finish, RequestStream
from engine.batch.output import End
from tests.support.scripted_core import MODEL_KEY


@dataclass(slots=True, eq=False)
class ScriptedChat:
    """
    Attributes:
        script: token ids of the reply.
        error: what its owner is to be told instead of how it ended in the core.
    """

    submission: Submission
    stream: RequestStream
    prompt: tuple[int, ...]
    script: list[int]
    sampling: SamplingParams
    arrival: float
    error: EngineError | None = None

    def finish(self, end: End, last: int) -> Finish:
        """What its owner is told of its end; `last` is the token that closes a message."""
        if self.error is not None:
            return Finish(FinishReason.ERROR, end.usage, end.timings, self.error.info())
        ids = (*end.token_ids, last)
        context = Context(MODEL_KEY, ids, len(self.submission.messages) + 1)
        return Finish(end.reason, end.usage, end.timings, end.error, None if end.error else context)
