"""Arrivals: makes the requests of submissions, and refuses those that can never be served."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Mapping, Sequence

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.errors import EngineError, InvalidRequestError, OverloadedError
from engine.api.lifecycle import FinishReason, RequestTimings, Timings
from engine.api.sampling import SamplingParams
from engine.api.stream import Usage
from engine.batch.plan import End, Request, TokenOutput
from engine.batch.refusal import log_refusal
from engine.core.admission import (
    check_deadline,
    check_priority,
    check_vocabulary,
    max_output_tokens,
)
from engine.core.ledger import KnobLedger
from engine.scheduling.scheduler import Scheduler
from engine.structure.grammar import Grammar


class Arrivals:
    """The way into a core's request table.

    Args:
        vocab_size: rows of the model's embedding.
        live: unfinished requests, by id.

    Attributes:
        count: how many requests have arrived, without refused ones.
    """

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        scheduler: Scheduler,
        ledger: KnobLedger,
        live: Mapping[str, Request],
    ) -> None:
        self.count = 0
        self._config = config
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._scheduler = scheduler
        self._ledger = ledger
        self._live = live

    def make(
        self,
        submission: Submission,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        arrival: float,
        grammar: Grammar | None,
    ) -> Request:
        """Make the request for a submission.

        Raises:
            InvalidRequestError: it can never be served.
            OverloadedError: too many requests wait.
        """
        self._check_room(submission.request_id)
        check_priority(submission.priority)
        check_deadline(submission.deadline)
        check_vocabulary(token_ids, self._vocab_size)
        biased = [token_id for token_id, _ in sampling.logit_bias]
        check_vocabulary(biased, self._vocab_size, "logit_bias")
        if sampling.structure is not None and grammar is None:
            raise InvalidRequestError(
                "structure is stated, and nothing has compiled it for this model", "structure"
            )
        deadline, source = submission.deadline, submission.fork_of
        request = Request(
            request_id=submission.request_id,
            ordinal=self.count + 1,
            prompt_token_ids=array("I", token_ids),
            sampling=sampling,
            seed=secrets.randbits(64) if sampling.seed is None else sampling.seed,
            eos_token_ids=self._eos,
            max_output_tokens=max_output_tokens(
                self._config, len(token_ids), sampling, trims=submission.trims_max_tokens
            ),
            timings=RequestTimings(arrival),
            origin=submission.origin,
            priority=submission.priority,
            deadline=None if deadline is None else arrival + deadline,
            fork_of=None if source is None else self._live.get(source),
            grammar=grammar,
            cache_salt=submission.cache_salt,
        )
        self.count = request.ordinal
        return request

    def _check_room(self, request_id: str) -> None:
        if request_id in self._live:
            raise InvalidRequestError(
                f"request_id is {request_id!r}; a request with this id has not ended yet",
                "request_id",
            )
        queue_limit = self._ledger.knobs.queue_limit
        if len(self._scheduler.waiting) >= queue_limit:
            raise OverloadedError(
                f"the queue is full, queue_limit is {queue_limit}; try again later", "queue_limit"
            )


def refusal(
    submission: Submission, num_tokens: int, timings: RequestTimings, error: EngineError
) -> TokenOutput:
    """Log why a submission of `num_tokens` tokens is refused; returns its end."""
    if isinstance(error, InvalidRequestError):
        log_refusal(submission, error)
    usage = Usage(num_tokens, 0, 0)
    end = End(FinishReason.ERROR, usage, Timings.of(timings, 0), (), error.info())
    return TokenOutput(submission.request_id, (), end)
