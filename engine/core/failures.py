"""Failures: steps that raised, the requests that end with them, and those computed again."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Sequence

from engine.api.errors import DeviceLostError, ErrorInfo, cause_of
from engine.api.lifecycle import FinishReason, RequestState
from engine.batch.plan import Request, Runner
from engine.core.ledger import KnobLedger
from engine.core.request_table import RequestTable
from engine.scheduling.composer import Books
from engine.scheduling.scheduler import Planned, Scheduler

log = logging.getLogger(__name__)

# So many failed steps in a row are not the fault of their requests. A device that is short of
# memory fails at some prompts, and computes others in between.
MOST_FAILURES = 8


class Failures:
    """Handles steps that raise.

    A step's prompts are the likely cause, because they make one step larger than the last: they end
    with the error, and decodes are recomputed. Without prompts all its requests end, so that each
    failure ends at least one and a broken device cannot loop.

    Attributes:
        in_a_row: how many steps failed since the last one that did not.
    """

    def __init__(
        self, runner: Runner, scheduler: Scheduler, table: RequestTable, ledger: KnobLedger
    ) -> None:
        self.in_a_row = 0
        self._runner = runner
        self._scheduler = scheduler
        self._table = table
        self._ledger = ledger

    def handle(
        self, failed: Planned, in_flight: deque[Planned], error: Exception
    ) -> tuple[list[Planned], str]:
        """Undo a step that raised and those in flight after it, and end the requests at fault.

        Returns:
            the steps that were undone, and the cause, for their records.

        Raises:
            DeviceLostError: nothing can be computed any more.
        """
        if isinstance(error, DeviceLostError):
            raise error
        self.in_a_row += 1
        if self.in_a_row == MOST_FAILURES:
            raise DeviceLostError(
                f"{MOST_FAILURES} steps failed one after the other, the last with {cause_of(error)}"
            ) from error
        log.error("step %d failed", failed.plan.step, exc_info=error)
        voided = [failed]
        while in_flight:  # Later steps used results that this one did not produce.
            later = in_flight.popleft()
            with contextlib.suppress(Exception):
                self._runner.result(later.handle)
            voided.append(later)
        for planned in voided:
            undo(self._scheduler.books, planned)
        both = zip(failed.requests, failed.plan.rows, strict=True)
        rows = [(request, row) for request, row in both if request.finish_reason is None]
        blamed = [request for request, row in rows if row.prefill] or [r for r, _row in rows]
        doubtful = drop_doubtful(self._scheduler.books, voided)
        self._scheduler.preempt([r for r in doubtful if r not in blamed], self._ledger.knobs)
        cause = f"{type(error).__name__}: {error}"
        info = ErrorInfo("engine_error", f"the step that computed this request failed: {cause}")
        for request in blamed:
            self._table.end(request, FinishReason.ERROR, info)
        return voided, cause


def undo(books: Books, planned: Planned) -> None:
    """Undo a failed step's progress: the tokens that its rows were to sample will not come."""
    books.reclaim.step_ended(planned.plan.step)
    if books.states is not None:
        books.states.step_failed(planned.saves)
    for request, row in zip(planned.requests, planned.plan.rows, strict=True):
        request.num_in_flight -= row.samples
        request.num_tokens -= row.samples


def drop_doubtful(books: Books, failed: Sequence[Planned]) -> list[Request]:
    """Drop the swaps in progress of plans that have failed: earlier steps may not have written what
    was to be copied, and the copies may not have been made.

    Returns:
        running requests whose blocks may have wrong content now.
    """
    swapped = [request for planned in failed for request in planned.swapped_out]
    swapped += books.swaps.out
    for request in swapped:
        if request.state is RequestState.PREEMPTED and request.host_blocks:
            books.swaps.drop(request)
    touched = [r for planned in failed for r in (*planned.requests, *planned.swapped_in)]
    everybody = dict.fromkeys(touched + swapped)
    return [request for request in everybody if request.state is RequestState.RUNNING]
