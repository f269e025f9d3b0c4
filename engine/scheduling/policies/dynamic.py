"""Request-level batching with a window."""

from __future__ import annotations

from engine.api.waiting import Cause, Wait
from engine.scheduling.composer import StepComposer
from engine.scheduling.policies.static import Static


class Dynamic(Static):
    """A batch starts when it is full, or when its first request has waited for the window.

    This is Triton Inference Server's dynamic batcher (`max_queue_delay_microseconds`). The window
    bounds how long a request waits for company. The batch still runs until its slowest member has
    ended, as under `static`.
    """

    name = "dynamic"
    uses = frozenset({"static_batch_size", "batch_window_ms"})

    def starts(self, step: StepComposer, size: int) -> bool:
        if step.num_waiting >= size or self.resumes(step):
            return True
        first = min((request.timings.arrival for request in step.waiting(size)), default=step.now)
        opens = first + step.knobs.batch_window_ms / 1000
        if step.now >= opens:
            return True
        step.wake(opens)
        left = round((opens - step.now) * 1000)
        step.hold(Wait(Cause.BATCH_OR_WINDOW, (*self.filled(step), left)))
        return False
