"""RequestTable: the unfinished requests of a core, how they arrive and the one way they end."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.errors import DeadlineError, EngineError, ErrorInfo
from engine.api.lifecycle import FinishReason, RequestState, RequestTimings, Timings
from engine.api.sampling import SamplingParams
from engine.api.stream import Usage
from engine.api.telemetry import Ended
from engine.batch.plan import NOT_FINITE, NOT_FOLLOWED, End, Request, StepResult, TokenOutput
from engine.core.arrivals import Arrivals, refusal
from engine.core.ledger import KnobLedger
from engine.core.observer import Observer
from engine.scheduling.scheduler import Planned, Scheduler
from engine.structure.grammar import Grammar

_FAILURES = {
    NOT_FINITE: ErrorInfo("engine_error", "the model gave logits that are not finite"),
    # The structure's source is at fault, so a retry would fail too.
    NOT_FOLLOWED: ErrorInfo(
        "invalid_request_error",
        "structure is too complex to follow: the next allowed tokens were not found within "
        "10 ms and 8,000 items of its grammar, of which an optional property has 4",
        "structure",
    ),
}


class Deadlines:
    """Requests whose deadline has not passed, by deadline."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next(self) -> float | None:
        """The earliest deadline of a request that still waits."""
        while self._entries and not _is_queued(self._entries[0][2]):
            heapq.heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def watch(self, request: Request, num_unfinished: int) -> None:
        """Add a request with a deadline.

        The entry of a request that left the queue would stay until its deadline, which may be far
        off. When there are more than twice as many entries as unfinished requests, all such entries
        are dropped.
        """
        assert request.deadline is not None
        if len(self._entries) > 2 * num_unfinished:
            self._entries = [entry for entry in self._entries if _is_queued(entry[2])]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (request.deadline, request.ordinal, request))

    def drain_passed(self, now: float) -> list[Request]:
        """Remove and return the waiting requests whose deadline has passed."""
        passed = []
        while (deadline := self.next) is not None and deadline <= now:
            passed.append(heapq.heappop(self._entries)[2])
        return passed


def _is_queued(request: Request) -> bool:
    return request.state is RequestState.WAITING


class RequestTable:
    """Requests from arrival to end, and the outputs to send to their owners.

    Args:
        vocab_size: rows of the model's embedding.
        clock: monotonic seconds.

    Attributes:
        live: unfinished requests, by id.
    """

    def __init__(
        self,
        config: EngineConfig,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        scheduler: Scheduler,
        observer: Observer,
        ledger: KnobLedger,
        clock: Callable[[], float],
    ) -> None:
        self.live: dict[str, Request] = {}
        self._arrivals = Arrivals(config, vocab_size, eos_token_ids, scheduler, ledger, self.live)
        self._num_blocks = config.num_blocks
        self._scheduler = scheduler
        self._observer = observer
        self._ledger = ledger
        self._clock = clock
        self._deadlines = Deadlines()
        self._outputs: list[TokenOutput] = []
        self._ended: list[Ended] = []

    @property
    def has_outputs(self) -> bool:
        """Whether outputs wait to be sent."""
        return bool(self._outputs)

    @property
    def next_deadline(self) -> float | None:
        """Clock time at which the next deadline passes, if any."""
        return self._deadlines.next

    def add(
        self,
        submission: Submission,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        arrival: float | None,
        grammar: Grammar | None,
    ) -> None:
        """Queue a request, or output the reason for its refusal."""
        now = self._clock()
        arrival = now if arrival is None else arrival
        try:
            request = self._arrivals.make(submission, token_ids, sampling, arrival, grammar)
        except EngineError as error:
            self._observer.refused()
            timings = RequestTimings(arrival, finished=now)
            self.emit(refusal(submission, len(token_ids), timings, error))
            return
        self.live[request.request_id] = request
        self._scheduler.add(request)
        if request.deadline is not None:
            self._deadlines.watch(request, len(self.live))
        self._observer.arrived(request, now)

    def expire(self) -> None:
        """End the requests whose deadline passed while they waited."""
        now = self._clock()
        for request in self._deadlines.drain_passed(now):
            waited = now - request.timings.arrival
            message = f"the deadline passed after {waited:.3f} s in the queue"
            self.end(request, FinishReason.ERROR, DeadlineError(message, "deadline").info())

    def end_stranded(self, requests: Sequence[Request]) -> None:
        """End requests that need a block when no other request holds one."""
        for request in requests:
            message = (
                f"the KV pool of {self._num_blocks} blocks has none left for this request, "
                f"which holds all {len(request.block_table)} that are in use"
            )
            self.end(request, FinishReason.ERROR, ErrorInfo("engine_error", message))

    def end(
        self,
        request: Request,
        reason: FinishReason,
        error: ErrorInfo | None = None,
        last: TokenOutput | None = None,
    ) -> None:
        """End a request in any state; there is no other way for a request to end."""
        request.error = error
        self._scheduler.finish(request, reason)
        self._observer.ended(request, self._ledger.knobs, self._clock())
        prompt, cached = request.num_prompt_tokens, request.num_cached_tokens
        count = len(request.output_token_ids)
        timings = Timings.of(request.timings, count)
        self._ended.append(Ended(request.request_id, count, reason, prompt, cached, timings))
        del self.live[request.request_id]
        end = End(
            reason,
            Usage(prompt, count, cached),
            timings,
            request.prompt_token_ids + request.output_token_ids,
            error,
        )
        self.emit((last or TokenOutput(request.request_id, ()))._replace(end=end))

    def append_tokens(
        self, planned: Planned, result: StepResult, now: float
    ) -> tuple[list[tuple[Request, FinishReason, TokenOutput]], int]:
        """Append the sampled tokens of a step, except to requests that ended while it ran.

        Args:
            now: engine clock, seconds.

        Returns:
            (request, reason, last output) for requests that end with their token, or with their
            prompt if they have no output, and how many tokens were appended. The requests are not
            ended yet, because the step's blocks must be published first.
        """
        self._send_prompts(planned, result)
        ends: list[tuple[Request, FinishReason, TokenOutput]] = []
        num_outputs = 0
        if len(result.token_ids) < len(planned.plan.rows):
            ends += _ended_prompts(planned)
        sampling = (
            request
            for request, row in zip(planned.requests, planned.plan.rows, strict=True)
            if row.samples
        )
        logprobs = result.logprobs or (None,) * len(result.token_ids)
        for request, token_id, found in zip(sampling, result.token_ids, logprobs, strict=True):
            request.num_in_flight -= 1
            if request.finish_reason is not None:
                continue
            if token_id < 0:
                # End it at once, so that this step's blocks are not published with NaN in them.
                self.end(request, FinishReason.ERROR, _FAILURES[token_id])
                continue
            request.output_token_ids.append(token_id)
            num_outputs += 1
            self._observer.emitted(request, now)
            output = TokenOutput(
                request.request_id, (token_id,), logprobs=() if found is None else (found,)
            )
            reason = request.ends_at(token_id)
            if reason is None:
                self.emit(output)
            else:
                ends.append((request, reason, output))
        return ends, num_outputs

    def repeated(self, requests: Sequence[Request], token_id: int, count: int) -> None:
        """Append a token `count` times to each of these requests."""
        for request in requests:
            request.output_token_ids.extend((token_id,) * count)
            request.num_tokens += count

    def _send_prompts(self, planned: Planned, result: StepResult) -> None:
        """Send the log-probabilities that a step found for prompt tokens, each once: a preempted
        request is computed again.
        """
        for row, found in result.prompts:
            request = planned.requests[row]
            if request.finish_reason is not None:
                continue
            if not found.is_finite:
                # As with a missing token, end the request before the step's blocks are published.
                self.end(request, FinishReason.ERROR, _FAILURES[NOT_FINITE])
            elif found.end > request.num_logprobs_sent:
                new = found.behind(request.num_logprobs_sent)
                request.num_logprobs_sent = found.end
                self.emit(TokenOutput(request.request_id, (), prompt=new))

    def emit(self, output: TokenOutput) -> None:
        """Queue an output for the request's owner, sent after the step."""
        self._outputs.append(output)

    def drain_outputs(self) -> list[TokenOutput]:
        """Remove and return the outputs since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def drain_ended(self) -> tuple[Ended, ...]:
        """Remove and return the requests that ended since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended


def _ended_prompts(planned: Planned) -> list[tuple[Request, FinishReason, TokenOutput]]:
    """Requests that want no output and whose prompt the step completed."""
    return [
        (request, FinishReason.LENGTH, TokenOutput(request.request_id, ()))
        for request, row in zip(planned.requests, planned.plan.rows, strict=True)
        if not row.samples
        and not request.max_output_tokens
        and request.finish_reason is None
        and row.start + row.count == request.num_prompt_tokens
    ]
