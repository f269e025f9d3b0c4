"""A policy of one's own: `tui --policy last_come:LastCome`, from the folder that holds this."""

from __future__ import annotations

from engine.scheduling.composer import Policy, StepComposer

CROWD = 16


class LastCome(Policy):
    """Decodes first; then, while a crowd waits, the newest request before all others.

    Who has waited long in an overloaded service has often given up, and serving in the order of
    arrival makes everybody wait as long (adaptive LIFO; Maurer, "Fail at Scale", ACM Queue 2015).
    """

    name = "last_come"
    uses = frozenset({"prefill_chunk"})

    def compose(self, step: StepComposer) -> None:
        chunk = step.knobs.prefill_chunk or None
        for request in sorted(step.running, key=lambda request: request.is_prefill):
            step.schedule(request, chunk)
        while head := step.next_waiting:
            if step.num_waiting > CROWD:
                head = max(step.waiting(step.num_waiting), key=lambda request: request.ordinal)
            if not step.admit(head, chunk):
                return
