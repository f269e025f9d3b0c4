"""StepOutput: the output of a step, applied to its requests."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason
from engine.batch.output import TokenOutput
from engine.batch.plan import NOT_FINITE, NOT_FOLLOWED, StepResult
from engine.batch.request import Request
from engine.core.observer import Observer
from engine.core.request_table import RequestTable
from engine.scheduling.planned import Planned

_FAILURES = {
    NOT_FINITE: ErrorInfo("engine_error", "the model gave logits that are not finite"),
    # The source is at fault, and would fail again.
    NOT_FOLLOWED: ErrorInfo(
        "invalid_request_error",
        "structure takes too much to follow: what the reply may say next was not found within "
        "10 ms and 8,000 items of its grammar, of which an optional property has 4",
        "structure",
    ),
}


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step's tokens led to.

    Attributes:
        ends: (request, reason, last output) for requests that end with their token, or with their
            prompt if they have no output. They are not ended yet, because the step's blocks must be
            published first.
        num_outputs: how many tokens were appended.
    """

    ends: list[tuple[Request, FinishReason, TokenOutput]]
    num_outputs: int

    @staticmethod
    def of(
        planned: Planned, result: StepResult, table: RequestTable, observer: Observer, now: float
    ) -> StepOutput:
        """Append the sampled tokens, except to requests that ended while the step ran.

        Args:
            now: engine clock, seconds.
        """
        _send_prompts(planned, result, table)
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
                table.end(request, FinishReason.ERROR, _FAILURES[token_id])
                continue
            request.output_token_ids.append(token_id)
            num_outputs += 1
            observer.emitted(request, now)
            output = TokenOutput(
                request.request_id, (token_id,), logprobs=() if found is None else (found,)
            )
            reason = request.ends_at(token_id)
            if reason is None:
                table.emit(output)
            else:
                ends.append((request, reason, output))
        return StepOutput(ends, num_outputs)


def _send_prompts(planned: Planned, result: StepResult, table: RequestTable) -> None:
    """Send the log-probabilities that a step found for prompt tokens, each once: a preempted
    request is computed again.
    """
    for row, found in result.prompts:
        request = planned.requests[row]
        if request.finish_reason is not None:
            continue
        if not found.is_finite:
            # As with a missing token, end the request before the step's blocks are published.
            table.end(request, FinishReason.ERROR, _FAILURES[NOT_FINITE])
        elif found.end > request.num_told:
            new = found.behind(request.num_told)
            request.num_told = found.end
            table.emit(TokenOutput(request.request_id, (), prompt=new))


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
