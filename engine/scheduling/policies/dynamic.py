"""Request-level batching with a window."""

from __future__ import annotations

from engine.scheduling.composer import StepComposer
from engine.scheduling.policies.static import Static


class Dynamic(Static):
    """A batch starts when it is full, or when its first request has waited for the window.

    Triton Inference Server's dynamic batcher (`max_queue_delay_microseconds`): it bounds what a
    request waits for company; the batch is still bound by its slowest member, as `static` is.
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
        step.hold(f"batch {self._filled(step)}, or in {(opens - step.now) * 1000:.0f} ms")
        return False
